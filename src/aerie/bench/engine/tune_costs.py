"""`aerie tune costs`: measure a pair's cost table on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aerie.api import find_pair
from aerie.assemble import graphs_core, load_draft, load_target, scratch_cores
from aerie.assemble_costs import describe_costs, describe_pair
from aerie.bench.provenance import provenance
from aerie.bench.round.setup import RoundSetup
from aerie.config import EngineConfig, require
from aerie.engine.engine import Limits
from aerie.engine.measure import FULL, Grid, Progress, measure_costs
from aerie.engine.measure_device import DeviceGrid, measure_device_costs
from aerie.models.decoder import Decoder
from aerie.models.eagle3_head import Eagle3Head
from aerie.speculation.costs import CostTable

Keep = Callable[[CostTable], None]


@dataclass(frozen=True)
class Asked:
    """What is measured, and where."""

    config: EngineConfig  # everything chosen
    geometry: str | None  # of the inflated built-in pair
    batches: tuple[int, ...]
    contexts: tuple[int, ...] | None  # None: those of the engine's grid
    most_rows: int
    repeats: int


def tune(asked: Asked, progress: Progress, keep: Keep) -> CostTable:
    """Run real rounds of forced shapes at every point of a grid; `keep` what is measured so far."""
    config, rest = asked.config, (asked.most_rows, asked.repeats)
    model = config.model
    is_captured = config.engine == "graphs"
    require(is_captured or asked.geometry is None, "--geometry is for engine graphs")
    target, head = _load(config, asked.geometry, progress)
    record = {
        "kind": "measured",
        "model": model.model or "built-in",
        "geometry": asked.geometry or "as loaded",
        **provenance(model.device),
        **describe_costs(config, describe_pair(target, head)),
    }
    if is_captured:
        grid = DeviceGrid(asked.batches, asked.contexts or DeviceGrid().contexts, *rest)
        core = graphs_core(config, target, head, grid)
        return measure_device_costs(core, grid, record, progress, keep)
    coarse = Grid(asked.batches, asked.contexts or FULL.contexts, *rest, FULL.most_tokens)
    limits = Limits(target.geometry.max_positions, target.geometry.vocab_size, ())
    return measure_costs(scratch_cores(config, target, head, limits), coarse, record, progress)


def _load(
    config: EngineConfig, geometry: str | None, progress: Progress
) -> tuple[Decoder, Eagle3Head]:
    model, page_size = config.model, config.cache.page_size
    if geometry is not None:
        require(model.model is None, "--geometry inflates the built-in pair, not --model")
        pair = RoundSetup(model.device, model.dtype, geometry).load()
        return pair.target, pair.head
    target_dir, draft_dir = find_pair(model.model, model.draft)
    require(draft_dir is not None, "costs are those of a pair: give its head with --draft")
    assert draft_dir is not None
    target = load_target(target_dir, model, page_size, progress)
    return target, load_draft(draft_dir, target, model, page_size)
