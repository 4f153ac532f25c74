"""Planned captured rounds: plain decoding's tokens, spells without drafts, and coming back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from aerie.config import GraphConfig, PlannerConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.params import SamplingParams
from aerie.speculation.device_policy import FixedRounds, Lesson, Widths
from aerie.speculation.planned_rounds import PlannedRounds
from aerie.speculation.policy import Situation
from aerie.speculation.tree import DraftTree
from tests.unit.engine.cores import (
    CHEAP,
    DEAR,
    Pair,
    assert_pool_is_unheld,
    core,
    finish_all,
    outputs,
)
from tests.unit.engine.test_lossless import PLAIN, make_jobs, run_in_random_order

PLANNED = SpeculationConfig(policy="planner", top_k=3, depth=3, nodes=12)
BUCKETS = GraphConfig(slots=(1, 2, 4), rows=(4, 8, 16, 24), columns=(32, 64))


def planned_core(pair: Pair, planner: PlannerConfig, **settings: object) -> EngineCore:
    return core(
        pair, speculation=PLANNED, planner=planner, engine="graphs", graphs=BUCKETS, **settings
    )


@pytest.mark.parametrize("sampling", ["greedy", "warm"])
@pytest.mark.parametrize("costs", ["cheap", "dear"])
def test_same_tokens_as_plain_decoding(pair: Pair, costs: str, sampling: str) -> None:
    rng = random.Random(f"planned/{costs}/{sampling}")
    jobs = make_jobs(rng, 4, sampling)
    jobs += [([1, 2], SamplingParams(max_tokens=40, ignore_eos=True))]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine = planned_core(pair, CHEAP if costs == "cheap" else DEAR, chunk=7, n_pages=512)
    assert run_in_random_order(engine, jobs, rng) == plain
    assert_pool_is_unheld(engine)


def test_the_planner_learns_and_plans(pair: Pair) -> None:
    engine = planned_core(pair, CHEAP)
    request_id = engine.submit([1], SamplingParams(max_tokens=60, ignore_eos=True))
    finish_all(engine)
    statistics = engine.request(request_id).statistics
    assert statistics.num_accepted_tokens > 10
    assert engine.rounds is not None
    policy = engine.rounds.parts.policy
    assert isinstance(policy, PlannedRounds)
    assert policy.planner.calibration.weight.sum() > 0
    assert policy.planner.running.paces[1].tokens > 0


def test_graphs_recorded_between_texts_leave_no_trace(pair: Pair) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    jobs = [([1, 2, 3], params), ([4, 5], params)]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine = planned_core(pair, CHEAP)
    assert engine.rounds is not None
    counts = engine.rounds.graphs.counts
    for _ in range(2):
        before = counts.direct
        engine.rounds.record(2, 40)
        n_recorded = counts.direct - before
        assert outputs(engine, jobs) == plain
    # Rows 4 to 24; nothing, the root's children, widths 1, 2 and 3 over one and two levels: once.
    shapes = engine.rounds.parts.policy.shapes
    assert len(shapes) == 2 + 3 * 2
    assert before > 0 and n_recorded == 0
    assert_pool_is_unheld(engine)


@dataclass
class Moods:
    """Drafts only in the rounds it is told to, and keeps the scores of what it was shown."""

    fixed: FixedRounds
    drafting: set[int]
    n_rounds: int = 0
    learns: bool = True
    scores: dict[int, Tensor] = field(default_factory=dict)

    def open(self, situation: Situation) -> Widths | None:
        self.n_rounds += 1
        return self.fixed.open(situation) if self.n_rounds in self.drafting else None

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        return self.fixed.shapes

    def settle(self, known: Sequence[Widths]) -> Widths:
        return known[0]

    def prepare(self, n_slots: int, is_steady: bool) -> int | None:
        """Nothing."""
        return None

    def select(
        self, tree: DraftTree, widths: Widths, chosen_out: Tensor, count_out: Tensor
    ) -> None:
        self.scores[self.n_rounds] = tree.scores.clone()
        chosen_out.copy_(torch.zeros_like(chosen_out))
        chosen_out[:, 0] = True
        count_out.fill_(1)

    def learn(self, lesson: Lesson) -> None:
        """Nothing."""


def scores_after(pair: Pair, drafting: set[int], n_rounds: int) -> Tensor:
    """Node scores of the last round's draft; only the root is ever verified."""
    engine = planned_core(pair, CHEAP)
    assert engine.rounds is not None
    parts = engine.rounds.parts
    shape = engine.parts.policy.shape
    moods = Moods(FixedRounds(shape, parts.ops.choose_best), drafting)
    object.__setattr__(parts, "policy", moods)
    engine.submit([1, 2, 3, 4], SamplingParams(max_tokens=30, ignore_eos=True))
    while n_rounds not in moods.scores:
        engine.step()
    return moods.scores[n_rounds]


def test_after_a_spell_the_draft_proposes_what_it_would_have_proposed(pair: Pair) -> None:
    every = scores_after(pair, set(range(1, 30)), 12)
    after = scores_after(pair, {1, 2, 3, 12}, 12)
    assert torch.allclose(every, after, atol=1e-5)
    assert (every[0] > 0).sum() > 4
