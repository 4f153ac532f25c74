"""After rounds without drafts the head catches up: it proposes what it would have proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.kernels.registry import Kernels
from aerie.requests.params import SamplingParams
from aerie.speculation.policy import FixedTree, Growth, Lesson, Situation, TreeShape, Widths
from aerie.speculation.tree import DraftTree
from tests.unit.engine.cores import LIMITS, Pair, core, finish_all, load_pair
from tests.unit.models.trained_pair import BOUNDARIES, train

TREE = SpeculationConfig(policy="planner", top_k=2, depth=3, nodes=8)
WINDOW = 6


@dataclass
class Moods:
    """Drafts only in the rounds it is told to, verifies the root alone, keeps the trees."""

    fixed: FixedTree
    drafting: set[int]
    n_rounds: int = 0
    learns: bool = True
    reason: str = "told to"
    trees: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # tokens, scores

    @property
    def shape(self) -> TreeShape:
        return self.fixed.shape

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        return (None, *self.fixed.shapes)

    def most_rows(self, n_seats: int) -> int:
        return n_seats

    def open(self, situation: Situation) -> Growth | None:
        self.n_rounds += 1
        return self.fixed.open(situation) if self.n_rounds in self.drafting else None

    def settle(self, growth: Growth, known: Sequence[Widths]) -> Growth:
        return growth

    def prepare(self, growth: Growth | None, n_seats: int, is_steady: bool) -> int | None:
        """Nothing is agreed."""
        return None

    def select(
        self, kernels: Kernels, tree: DraftTree, selected_out: Tensor, count_out: Tensor
    ) -> None:
        self.trees[self.n_rounds] = tree.tokens.clone(), tree.scores.clone()
        selected_out.zero_()
        selected_out[:, 0] = True
        count_out.fill_(1)

    def learn(self, lesson: Lesson, growth: Growth | None) -> None:
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
    return load_pair(directory, "exact", window=None)


def play(pair: Pair, launcher: str, drafting: set[int], n_rounds: int) -> tuple[EngineCore, Moods]:
    """Rounds of two requests, one token each, the last of them with a draft if it is told to."""
    engine = core(pair, speculation=TREE, chunk=64, engine=launcher)
    policy = Moods(FixedTree(engine.parts.policy.shape), drafting)
    engine.launcher.use(policy)
    prompt = [(3 * index + 1) % LIMITS.vocabulary for index in range(23)]
    params = SamplingParams(max_tokens=60, temperature=0.7, seed=3, ignore_eos=True)
    engine.submit(prompt, params)
    engine.submit(prompt[:2], params)
    while policy.n_rounds < n_rounds:
        engine.step()
    return engine, policy


def assert_same_proposals(ours: Moods, theirs: Moods, last: int) -> None:
    for own, other in zip(ours.trees[last], theirs.trees[last], strict=True):
        assert torch.equal(own, other)
    scores = ours.trees[last][1]
    assert float(scores[:, 1:].max(dim=1).values.min()) > 0, "everybody is drafted for"


@pytest.mark.parametrize("n_silent", [1, 3, 2 * WINDOW, 5 * WINDOW])
def test_a_windowed_head_catches_up_from_what_it_can_still_see(
    windowed: Pair, launcher: str, n_silent: int
) -> None:
    last = 8 + n_silent
    _, steady = play(windowed, launcher, set(range(100)), last)
    engine, moody = play(windowed, launcher, {*range(8), last}, last)
    assert_same_proposals(moody, steady, last)
    history = engine.parts.state.features.history
    assert history is not None and history.taps.shape[1] == WINDOW, "nothing else is kept"


@pytest.mark.parametrize("n_silent", [1, 20])
def test_a_head_without_a_window_keeps_everything(pair: Pair, launcher: str, n_silent: int) -> None:
    last = 8 + n_silent
    _, steady = play(pair, launcher, set(range(100)), last)
    _, moody = play(pair, launcher, {*range(8), last}, last)
    assert_same_proposals(moody, steady, last)


def test_both_launchers_draft_the_same(pair: Pair) -> None:
    _, direct = play(pair, "direct", {1, 2, 3, 12}, 12)
    _, captured = play(pair, "graphs", {1, 2, 3, 12}, 12)
    for last in direct.trees:
        assert_same_proposals(direct, captured, last)


def test_newcomers_draft_in_their_first_round(pair: Pair, launcher: str) -> None:
    """The features of a prompt's last position wait for its first draft."""
    _, policy = play(pair, launcher, {1}, 2)
    assert float(policy.trees[1][1][:, 1:].max(dim=1).values.min()) > 0
    engine = core(pair, speculation=SpeculationConfig(top_k=2, depth=3, nodes=8), engine=launcher)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    ids = [engine.submit([1, 2, 3], params)]
    for _ in range(3):
        engine.step()
    ids += [engine.submit(prompt, params) for prompt in ([4, 5], [6] * 20)]
    first: dict[int, int] = {}  # nodes of the first tree of each
    while not engine.is_idle:
        engine.step()
        for request_id, tree in engine.launcher.trees.items():
            first.setdefault(request_id, len(tree.nodes))
    assert first == dict.fromkeys(ids, 8)


def test_never_drafting_before_a_long_text_costs_nothing_later(
    windowed: Pair, launcher: str
) -> None:
    """The last positions of a spell wait, as many as the window holds."""
    _, steady = play(windowed, launcher, set(range(100)), 30)
    engine, moody = play(windowed, launcher, {30}, 30)
    assert_same_proposals(moody, steady, 30)
    finish_all(engine)


def test_a_text_the_draft_has_not_seen_is_not_reused(windowed: Pair, launcher: str) -> None:
    engine, _ = play(windowed, launcher, {1, 40}, 41)
    long, short = engine.running
    # What it saw at the first draft; behind that is a gap, for good.
    assert long.seen <= len(long.job.prompt) and short.seen <= len(short.job.prompt)
    finish_all(engine)
    again = engine.submit(long.tokens[:60], SamplingParams(max_tokens=2))
    finish_all(engine)
    reused = engine.request(again).statistics.reused_tokens
    assert len(long.job.prompt) - 4 <= reused <= len(long.job.prompt)


def test_a_prompt_is_shown_to_the_draft_while_nobody_drafts(windowed: Pair, launcher: str) -> None:
    """Or a long prompt read under a planner that waits could never be reused."""
    engine, _ = play(windowed, launcher, set(), 6)
    long = engine.running[0]
    assert not long.n_unread
    assert long.seen == len(long.job.prompt) - 1
    finish_all(engine)
    again = engine.submit(long.job.prompt, long.params)
    finish_all(engine)
    assert engine.request(again).statistics.reused_tokens >= long.seen - 4
