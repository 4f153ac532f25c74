"""`aerie bench engine`: the planner beside plain decoding, fixed trees, CAST and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aerie.api import Engine
from aerie.bench.engine.contract import (
    PLANNER,
    POLICIES,
    SHORT,
    Contract,
    choose_prompts,
)
from aerie.bench.engine.oracle import best_choice, record
from aerie.bench.engine.run import Bed, interleave
from aerie.bench.engine.summary import Place, summarise
from aerie.bench.provenance import provenance
from aerie.config import LIMITS, PlannerConfig
from aerie.speculation.costs import CostTable
from aerie.speculation.planner import Planner
from aerie.speculation.policy import Situation, TreeShape

Note = Callable[[str], None]
ORACLE_TOKENS = 512  # recorded tokens of a place, all texts together, each as long as its runs
PAGE = 16


@dataclass(frozen=True, eq=False)
class Setting:
    """What all places of a session share."""

    contract: Contract
    bed: Bed
    encode: Callable[[str], Sequence[int]]
    costs: CostTable
    note: Note


def open_setting(contract: Contract, costs: PlannerConfig, note: Note) -> Setting:
    """The built-in pair with room for the largest point, and the costs it plans from."""
    largest = max(contract.contexts)
    most = max(contract.batches)
    # Long prompts share their documents' pages; everything else is a request's own.
    slots = 4 * largest + most * (SHORT + contract.tokens + 512) + 128 * SHORT
    engine = Engine.load(
        device="cpu",
        cache={"n_pages": slots // PAGE, "page_size": PAGE},
        scheduler={"max_batch": most},
        planner=costs,
    )
    planner = engine.core.parts.policy
    assert isinstance(planner, Planner), "an engine without a shape plans"
    return Setting(contract, Bed(engine.core), engine.tokenizer.encode, planner.costs, note)


def run_place(setting: Setting, batch: int, context: int) -> Place:
    """All policies at one batch size and context."""
    contract, bed, costs, note = setting.contract, setting.bed, setting.costs, setting.note
    groups_of = choose_prompts(context, setting.encode)
    groups = [groups_of(batch, repeat) for repeat in range(contract.repeats)]
    policies = {name: make(costs, contract.explore_every) for name, make in POLICIES.items()}
    reader = policies[PLANNER]
    distinct = {tuple(prompt): prompt for group in groups for prompt in group}
    note(f"batch {batch}, context {context}: reading {len(distinct)} prompts")
    first_tokens = bed.read(list(distinct.values()), reader)
    new_tokens = contract.new_tokens(batch)
    bed.run("warm", policies["chain3"], groups[0], min(new_tokens, 16))
    runs, n_different = interleave(
        bed,
        policies,
        groups,
        new_tokens,
        lambda name: note(f"batch {batch}, context {context}: {name}"),
    )
    note(f"batch {batch}, context {context}: recording trees for the oracle")
    limits = LIMITS[PLANNER]
    shape = TreeShape(limits.top_k, limits.depth, limits.nodes)
    n_texts = max(ORACLE_TOKENS // new_tokens, 2)
    texts = record(bed, list(distinct.values())[:n_texts], new_tokens, shape)
    oracle = best_choice(texts, costs, Situation(batch, context + new_tokens / 2), limits.depth)
    return summarise(batch, context, runs, first_tokens, oracle, n_different)


def head_of_report(setting: Setting) -> dict[str, Any]:
    """What every result carries: contract, device, commit, costs."""
    found = provenance("cpu")
    return {
        "contract": {**asdict(setting.contract), "hash": setting.contract.digest},
        "device": found["device"],
        "provenance": found,
        "costs": dict(setting.costs.provenance),
    }
