"""`aerie tune costs`: measure a pair's cost table on this machine."""

from __future__ import annotations

from collections.abc import Callable

from aerie.api import find_pair
from aerie.assemble import load_draft, load_target, scratch_cores
from aerie.bench.provenance import provenance
from aerie.config import EngineConfig, ModelConfig, require
from aerie.engine.engine import Limits
from aerie.engine.measure import Grid, measure_costs
from aerie.speculation.costs import CostTable


def tune_costs(
    model: str | None,
    draft: str | None,
    config: ModelConfig,
    grid: Grid,
    note: Callable[[str], None],
) -> CostTable:
    """Run real rounds of forced shapes at every point of a grid."""
    target_dir, draft_dir = find_pair(model, draft)
    require(draft_dir is not None, "costs are those of a pair: give draft=DIR")
    assert draft_dir is not None
    target = load_target(target_dir, config)
    head = load_draft(draft_dir, target, config)
    geometry = target.geometry
    limits = Limits(geometry.max_positions, geometry.vocab_size, ())
    make = scratch_cores(EngineConfig(model=config), target, head, limits)
    record = {"kind": "measured", "model": model or "built-in", **provenance(config.device)}
    return measure_costs(make, grid, record, note)
