"""`aerie tune costs`: measure a pair's cost table on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from aerie.api import find_pair
from aerie.assemble import choose_backend, graphs_core, load_draft, load_target, scratch_cores
from aerie.assemble_costs import describe_pair
from aerie.bench.provenance import provenance
from aerie.bench.round.setup import PAGE, RoundSetup
from aerie.config import CacheConfig, EngineConfig, ModelConfig, require
from aerie.engine.engine import Limits
from aerie.engine.measure import FULL, Grid, measure_costs
from aerie.engine.measure_device import DeviceGrid, measure_device_costs
from aerie.models.decoder import Decoder
from aerie.models.eagle3_head import Eagle3Head
from aerie.speculation.costs import CostTable

Note = Callable[[str], None]
Keep = Callable[[CostTable], None]


@dataclass(frozen=True)
class Asked:
    """What is measured, and where."""

    model: ModelConfig
    engine: str  # "eager" or "graphs"
    geometry: str | None  # of the inflated built-in pair
    batches: tuple[int, ...]
    contexts: tuple[int, ...] | None  # None: those of the engine's grid
    most_rows: int
    repeats: int


def tune(asked: Asked, note: Note, keep: Keep) -> CostTable:
    """Run real rounds of forced shapes at every point of a grid; `keep` what is measured so far."""
    rest = (asked.most_rows, asked.repeats)
    if asked.engine == "graphs":
        contexts = asked.contexts or DeviceGrid().contexts
        return tune_rounds(asked, DeviceGrid(asked.batches, contexts, *rest), note, keep)
    require(asked.geometry is None, "--geometry is for engine graphs")
    grid = Grid(asked.batches, asked.contexts or FULL.contexts, *rest, FULL.most_tokens)
    return tune_costs(asked.model, grid, note)


def tune_costs(config: ModelConfig, grid: Grid, note: Note) -> CostTable:
    """Of the eager loop."""
    target, head = _load(config)
    geometry = target.geometry
    limits = Limits(geometry.max_positions, geometry.vocab_size, ())
    make = scratch_cores(EngineConfig(model=config), target, head, limits)
    record = {"kind": "measured", "model": config.model or "built-in", **provenance(config.device)}
    return measure_costs(make, grid, record, note)


def tune_rounds(asked: Asked, grid: DeviceGrid, note: Note, keep: Keep) -> CostTable:
    """Of captured rounds."""
    config = EngineConfig(model=asked.model, cache=CacheConfig(page_size=PAGE))
    if asked.geometry is None:
        target, head = _load(asked.model, PAGE)
    else:
        require(asked.model.model is None, "--geometry inflates the built-in pair, not --model")
        pair = RoundSetup(asked.model.device, asked.model.dtype, asked.geometry).load()
        target, head = pair.target, pair.head
    core = graphs_core(replace(config, backend=choose_backend(config).value), target, head, grid)
    record = {
        "kind": "measured",
        "model": asked.model.model or "built-in",
        "geometry": asked.geometry or "as loaded",
        "pair": describe_pair(target, head),
        **provenance(asked.model.device),
    }
    return measure_device_costs(core, grid, record, note, keep)


def _load(config: ModelConfig, page_size: int = 1) -> tuple[Decoder, Eagle3Head]:
    target_dir, draft_dir = find_pair(config.model, config.draft)
    require(draft_dir is not None, "costs are those of a pair: give draft=DIR")
    assert draft_dir is not None
    target = load_target(target_dir, config, page_size)
    return target, load_draft(draft_dir, target, config, page_size)
