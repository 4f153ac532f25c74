"""After rounds without drafts the head catches up: it proposes what it would have proposed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.params import SamplingParams
from aerie.speculation.policy import FixedTree, Gains, Growth, Situation, TreeShape
from aerie.speculation.tree import DraftTree, Verdict, best_nodes
from tests.unit.engine.cores import LIMITS, Pair, core, finish_all, load_pair
from tests.unit.models.trained_pair import BOUNDARIES, train

SHAPE = TreeShape(top_k=2, depth=3, verify=1)
TREE = SpeculationConfig(top_k=2, depth=3, nodes=8)
WINDOW = 6


@dataclass
class Moods:
    """Drafts only in the rounds it is told to, verifies the root alone, keeps the trees."""

    shape: TreeShape
    drafting: set[int]
    n_rounds: int = 0
    trees: dict[int, DraftTree] = field(default_factory=dict)

    def open(self, situation: Situation) -> Growth | None:
        self.n_rounds += 1
        return FixedTree(replace(self.shape, verify=8)) if self.n_rounds in self.drafting else None

    def next_width(self, depth: int, gains: Gains) -> int:
        raise AssertionError("the growth of the round is asked, not the policy")

    def select(self, tree: DraftTree) -> torch.Tensor:
        self.trees[self.n_rounds] = tree
        return best_nodes(tree, 1)

    def learn(self, tree: DraftTree, chosen: torch.Tensor, verdict: Verdict) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The tiny pair, its head looking back a few tokens only."""
    directory: Path = tmp_path_factory.mktemp("windowed")
    trained = train(directory)
    ids = [boundary - 1 for boundary in BOUNDARIES]
    trained.write_head(
        directory / "head",
        eagle_config={"eagle_aux_hidden_state_layer_ids": ids},
        layer_types=["sliding_attention"],
        sliding_window=WINDOW,
    )
    return load_pair(directory, "exact")


def play(pair: Pair, drafting: set[int], n_rounds: int) -> tuple[EngineCore, Moods]:
    engine = core(pair, speculation=TREE, chunk=5)
    policy = Moods(SHAPE, drafting)
    engine.parts = replace(engine.parts, policy=policy)
    prompt = [(3 * index + 1) % LIMITS.vocabulary for index in range(23)]
    params = SamplingParams(max_tokens=60, temperature=0.7, seed=3, ignore_eos=True)
    engine.submit(prompt, params)
    engine.submit(prompt[:2], params)
    for _ in range(n_rounds):
        engine.step()
    return engine, policy


def assert_same_proposals(ours: DraftTree, theirs: DraftTree) -> None:
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.scores, theirs.scores)
    assert float(ours.scores[:, 1:].max()) > 0


@pytest.mark.parametrize("n_silent", [1, 3, 2 * WINDOW, 5 * WINDOW])
def test_a_windowed_head_catches_up_from_what_it_can_still_see(
    windowed: Pair, n_silent: int
) -> None:
    last = 8 + n_silent
    _, steady = play(windowed, set(range(100)), last)
    engine, moody = play(windowed, {*range(8), last}, last)
    assert_same_proposals(moody.trees[last], steady.trees[last])
    waiting = [part for request in engine.running for part in request.features]
    assert sum(len(part.next_tokens) for part in waiting) <= 2 * 2 * WINDOW


@pytest.mark.parametrize("n_silent", [1, 20])
def test_a_head_without_a_window_keeps_everything(pair: Pair, n_silent: int) -> None:
    last = 8 + n_silent
    _, steady = play(pair, set(range(100)), last)
    _, moody = play(pair, {*range(8), last}, last)
    assert_same_proposals(moody.trees[last], steady.trees[last])


def test_never_drafting_before_the_prompt_is_read_costs_nothing_later(windowed: Pair) -> None:
    """The prompt's own features wait too, sink and window of them."""
    _, steady = play(windowed, set(range(100)), 30)
    engine, moody = play(windowed, {30}, 30)
    assert_same_proposals(moody.trees[30], steady.trees[30])
    assert all(request.held.draft_gap is not None for request in engine.running[:1])


def test_a_text_the_draft_has_not_seen_is_not_reused(windowed: Pair) -> None:
    engine, _ = play(windowed, {1}, 40)
    long, short = engine.running
    assert long.held.draft_gap is not None
    assert long.n_draft_seen <= long.held.draft_gap
    assert short.n_draft_seen <= short.seq_len


def test_a_prompt_is_shown_to_the_draft_while_nobody_drafts(windowed: Pair) -> None:
    """Or a long prompt read under a planner that waits could never be reused."""
    engine, _ = play(windowed, set(), 6)
    long = engine.running[0]
    assert not long.n_unread
    assert long.held.draft_gap is None
    n_seen = long.n_draft_seen
    assert n_seen >= len(long.job.prompt) - 1 - 5, "all but the last chunk"
    finish_all(engine)
    again = engine.submit(long.job.prompt, long.params)
    finish_all(engine)
    assert engine.request(again).statistics.reused_tokens >= n_seen - 4
