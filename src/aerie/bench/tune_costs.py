"""`aerie tune costs`: measure a pair's cost table on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aerie.api import find_pair
from aerie.assemble.choices import context_of
from aerie.assemble.core import measured_core, with_numerics
from aerie.assemble.costs import describe_costs, describe_pair
from aerie.bench.provenance import provenance
from aerie.bench.round.setup import load_pair
from aerie.config import EngineConfig, require
from aerie.costs.table import CostTable
from aerie.models.decoder import Decoder
from aerie.tune.costs import measure_costs
from aerie.tune.grid import FULL, Progress


def tune(
    asked: EngineConfig,
    geometry: str | None,
    sizes: Mapping[str, Any],
    progress: Progress,
    keep: Callable[[CostTable], None],
) -> CostTable:
    """Run real rounds of forced shapes at every point of a grid; `keep` what is measured so far.

    `geometry` is of the inflated built-in pair; `sizes` are those of the grid that were asked for.
    """
    target_dir, draft_dir = find_pair(asked.model.model, asked.model.draft)
    require(draft_dir is not None, "costs are those of a pair: give its head with --draft")
    # An inflated pair is dense, as the built-in one is: the same numerics are chosen for it.
    model = with_numerics(asked.model, target_dir)
    config, full = replace(asked, model=model), FULL[asked.engine]
    is_captured = config.engine == "graphs"
    require(is_captured or geometry is None, "--geometry is for engine graphs")
    target, head = load_pair(config, geometry, progress)
    assert head is not None, "it was asked for"
    record = {
        "kind": "measured",
        "model": model.model or "built-in",
        "geometry": geometry or "as loaded",
        **provenance(model.device),
        **describe_costs(config, describe_pair(target, head)),
    }
    contexts = _within(full.contexts, config, target)
    grid = replace(full, **{"contexts": contexts, **sizes})
    core = measured_core(config, target, head, grid)
    return measure_costs(core, grid, record, progress, keep)


def _within(contexts: tuple[int, ...], config: EngineConfig, target: Decoder) -> tuple[int, ...]:
    """Those that the model has positions for; of a very short one, half of them."""
    longest = context_of(config.model, target.geometry.max_positions)
    return tuple(context for context in contexts if context < longest) or (longest // 2,)
