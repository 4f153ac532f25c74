"""`aerie tune costs`: measure a pair's cost table on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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

Keep = Callable[[CostTable], None]


@dataclass(frozen=True)
class Asked:
    """What is measured, and where."""

    config: EngineConfig  # everything chosen
    geometry: str | None  # of the inflated built-in pair
    batches: tuple[int, ...] | None  # None, here and below: those of the engine's grid
    contexts: tuple[int, ...] | None
    most_rows: int | None
    repeats: int


def tune(asked: Asked, progress: Progress, keep: Keep) -> CostTable:
    """Run real rounds of forced shapes at every point of a grid; `keep` what is measured so far."""
    full, named = FULL[asked.config.engine], asked.config.model
    target_dir, draft_dir = find_pair(named.model, named.draft)
    require(draft_dir is not None, "costs are those of a pair: give its head with --draft")
    # An inflated pair is dense, as the built-in one is: the same numerics are chosen for it.
    model = with_numerics(named, target_dir)
    config = replace(asked.config, model=model)
    is_captured = config.engine == "graphs"
    require(is_captured or asked.geometry is None, "--geometry is for engine graphs")
    target, head = load_pair(config, asked.geometry, progress)
    assert head is not None, "it was asked for"
    record = {
        "kind": "measured",
        "model": model.model or "built-in",
        "geometry": asked.geometry or "as loaded",
        **provenance(model.device),
        **describe_costs(config, describe_pair(target, head)),
    }
    grid = replace(
        full,
        batches=asked.batches or full.batches,
        contexts=asked.contexts or _within(full.contexts, config, target),
        most_rows=asked.most_rows or full.most_rows,
        repeats=asked.repeats,
    )
    core = measured_core(config, target, head, grid)
    return measure_costs(core, grid, record, progress, keep)


def _within(contexts: tuple[int, ...], config: EngineConfig, target: Decoder) -> tuple[int, ...]:
    """Those that the model has positions for; of a very short one, half of them."""
    longest = context_of(config.model, target.geometry.max_positions)
    return tuple(context for context in contexts if context < longest) or (longest // 2,)
