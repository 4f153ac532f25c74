"""The planner is not decoration: change a cost and the plan changes as the rule predicts."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from aerie.costs.table import CostTable, Sample, Surface
from aerie.speculation.offer import Offers
from aerie.speculation.planner import _MOST_PRICES, Planner, Round
from aerie.speculation.policy import FixedTree, Growth, Lesson, Situation, TreeShape
from aerie.speculation.running import FIRST_SPELL, PROBE_ROUNDS, Spell, go_on
from aerie.speculation.tree import DraftTree
from tests.unit.speculation.chains import accepting, chain, selected

SHAPE = TreeShape(top_k=4, depth=8, verify=32)
HERE = Situation(batch=1, context=512.0)


def table(plain: float = 10.0, row: float = 0.1, draft: float = 1.0) -> CostTable:
    """Milliseconds: a plain step, each further row, one draft level."""
    verify = tuple(
        Sample(batch, 512, rows, (plain + row * (rows - batch)) / 1e3)
        for batch in (1, 8)
        for rows in (batch, batch * 64)
    )
    level = tuple(Sample(b, 512, b, draft / 1e3) for b in (1, 8))
    extend = tuple(Sample(b, 512, b, 0.5 / 1e3) for b in (1, 8))
    return CostTable(Surface(verify), Surface(level), Surface(extend), {})


def looking(costs: CostTable, explore_every: int = 0) -> Planner:
    """A planner that is asked after every layer, and may verify any number of rows."""
    return Planner(SHAPE, costs, explore_every, Offers(None, SHAPE.verify, "cpu"), looks=True)


def draft_depth(planner: Planner, survival: float) -> int:
    """Levels drafted when each level keeps `survival` of the one above; 0: none at all."""
    growth = planner.open(HERE)
    return 0 if growth is None else grown_depth(growth, survival)


def grown_depth(growth: Growth, survival: float) -> int:
    for depth in range(1, SHAPE.depth + 1):
        mass = survival**depth
        gains = np.cumsum([0.0, mass, mass / 64, mass / 64, mass / 64]).astype(np.float32)
        if not growth.next_width(depth, lambda g=gains: g):  # type: ignore[misc]
            return depth
    raise AssertionError("the last level was not the last")


def verified(planner: Planner, scores: list[float]) -> int:
    growth = planner.open(HERE)
    assert growth is not None
    assert planner.prepare(growth, 1, is_steady=False) is None
    return int(selected(planner, chain(scores, SHAPE.depth)).sum())


def test_dearer_drafting_drafts_less() -> None:
    costs = (0.5, 1.0, 2.0, 4.0)
    depths = [draft_depth(looking(table(draft=cost)), 0.8) for cost in costs]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > depths[-1]


def test_drafting_stops_at_the_level_the_rule_names() -> None:
    """Doubled draft cost stops earlier: each plan ends where a level's worth falls below it."""
    stops = []
    for level in (1.0, 2.0):
        costs = table(draft=1.0)
        planner = looking(replace(costs, draft=costs.draft.scaled(level)))
        growth = planner.open(HERE)
        assert isinstance(growth, Round)
        stop = grown_depth(growth, 0.8)
        price = growth.rate * (level + 0.1) / 1e3  # one more node: a level and a row
        ratio = planner.learnt.running.ratios[0]
        assert ratio * 0.8 ** (stop - 1) > price
        assert stop == SHAPE.depth or ratio * 0.8**stop <= price
        stops.append(stop)
    assert stops[1] < stops[0]


def test_a_cliff_in_the_verify_cost_is_not_stepped_over() -> None:
    scores = [1.0, *(0.9 - 0.01 * i for i in range(31))]
    assert verified(looking(table(row=0.01)), scores) == 32
    rows = [Sample(1, 512, n, (10 + (0 if n <= 16 else 200)) / 1e3) for n in range(1, 65)]
    cliff = looking(replace(table(), verify=Surface(tuple(rows))))
    assert verified(cliff, scores) == 16


def test_a_cost_that_falls_again_is_used() -> None:
    dear_middle = [Sample(1, 512, n, (10 + (100 if 4 < n < 28 else 0)) / 1e3) for n in range(1, 65)]
    planner = looking(replace(table(), verify=Surface(tuple(dear_middle))))
    assert verified(planner, [1.0, *[0.3] * 31]) == 32


def test_plain_decoding_when_drafting_is_dearer_than_it_brings() -> None:
    planner = looking(table(draft=30.0, row=10.0))
    assert planner.open(HERE) is None
    assert planner.prepare(None, 1, is_steady=True) == 1, "roots alone can be agreed on"
    planner.learn(accepting(0, chain([1.0]), 1), None)  # there is nothing to learn from
    assert not planner.learnt.calibration.weight.any()


def play(planner: Planner, n_rounds: int, n_accepted: int) -> list[bool]:
    """Rounds on a chain of four of which so many are accepted; whether each drafted."""
    drafted = []
    tree = chain([1.0, 0.9, 0.8, 0.7, 0.6])
    gains: NDArray[np.float32] = np.array([0, 0.8, 0.8, 0.8, 0.8], np.float32)
    for _ in range(n_rounds):
        growth = planner.open(HERE)
        drafted.append(growth is not None)
        for depth in range(1, 4 if growth is not None else 1):
            assert growth is not None
            growth.next_width(depth, lambda: gains)
        n_rows = 1
        if growth is not None:
            planner.prepare(growth, 1, is_steady=False)
            n_rows = int(selected(planner, tree).sum())
        planner.learn(accepting(min(n_accepted, n_rows - 1), tree, n_rows), growth)
    return drafted


def test_easy_requests_get_more_nodes_than_hard_ones() -> None:
    planner = looking(table(row=0.8))
    growth = planner.open(Situation(3, 512.0))
    assert growth is not None
    planner.prepare(growth, 3, is_steady=False)
    depth = torch.arange(8)
    tree = DraftTree(
        tokens=depth.expand(3, 8),
        scores=torch.stack([0.95**depth, 0.6**depth, 0.1**depth]).float(),
        depths=depth.expand(3, 8).contiguous(),
        parents=(depth - 1).expand(3, 8).contiguous(),
        deepest=7,
    )
    counts = selected(planner, tree).sum(dim=1).tolist()
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1] > counts[2] == 1, "roots are verified whatever happens"


def test_rows_are_agreed_on_in_a_steady_batch_alone() -> None:
    """By what the last rows were worth: nothing is known before the first verdict."""
    planner, tree = looking(table(row=0.5)), chain([1.0, 0.9, 0.8, 0.05, 0.01])
    for is_steady, expected in ((True, None), (False, None), (True, 3)):
        growth = planner.open(HERE)
        assert growth is not None
        agreed = planner.prepare(growth, 1, is_steady)
        assert agreed == expected
        n_rows = int(selected(planner, tree).sum())
        assert n_rows == 3
        planner.learn(accepting(2, tree, 5), growth)


def test_a_batch_may_agree_on_more_rows_than_one_request_has() -> None:
    """Eight requests whose every row is good: sixty-four rows, one tree's most, are not enough."""
    offers = Offers((8, 16, 32, 64, 128, 256), 16, "cpu")
    planner = Planner(replace(SHAPE, verify=16), table(row=0.01), 0, offers, looks=False)
    depth = torch.arange(8)
    scores = (0.95**depth).float().expand(8, 8).contiguous()
    path = torch.arange(9).expand(8, 9).contiguous()
    for _ in range(3):
        growth = planner.open(Situation(8, 512.0))
        assert growth is not None
        agreed = planner.prepare(growth, 8, is_steady=True)
        planner.learn(Lesson(scores, depth.expand(8, 8), [8] * 8, path), growth)
    assert agreed == 128


def test_a_level_that_was_never_drafted_goes_on_as_the_last_one() -> None:
    gains = np.array([[0, 0.8, 0.9], [0, 0.6, 0.6], [0, 0.1, 0.1], [0, 0.1, 0.1]], np.float32)
    go_on(gains, 2)
    assert gains[2].tolist() == pytest.approx([0, 0.4, 0.4])
    assert gains[3].tolist() == pytest.approx([0, 0.8 / 3, 0.8 / 3])
    go_on(gains, 4)  # nothing is left to guess
    rising = np.array([[0, 0.5], [0, 0.7], [0, 0.1]], np.float32)
    go_on(rising, 2)
    assert rising[2].tolist() == pytest.approx([0, 0.7]), "nothing is taken to rise"


def test_two_good_levels_are_reason_enough_for_a_deep_draft() -> None:
    """A captured draft is planned before it begins: by levels it has not seen, too."""
    planner = Planner(SHAPE, table(), 0, Offers((1, 2, 4, 8, 16, 32), 32, "cpu"), looks=False)
    lesson = accepting(4, chain([1.0, 0.9, 0.9, 0.9, 0.9]), 5)

    def planned(gain: float, n_levels: int) -> int:
        gains = np.tile(np.array([0, *[gain] * 4], np.float32), (n_levels, 1))
        for _ in range(12):
            growth = planner.open(HERE)
            planner.learn(replace(lesson, gains=gains), growth)
        plan = planner.open(HERE)
        assert plan is not None and plan.widths is not None
        return len(plan.widths)

    assert planned(0.02, SHAPE.depth) == 0
    assert planned(0.95, 2) == SHAPE.depth - 1


def test_a_lesson_counts_the_rows_of_the_path() -> None:
    """Whatever stands between them; rows beyond a request's own belong to none."""
    planner = looking(table())
    growth = planner.open(HERE)
    lesson = Lesson(
        scores=torch.tensor([[1.0, 0.5, 0.4, 0.3, 0.9]]),
        depths=torch.tensor([[0, 1, 1, 2, 3]]),
        n_rows=[4],
        path=torch.tensor([[0, 2, 3]]),
    )
    planner.learn(lesson, growth)
    weight, surplus = planner.learnt.calibration.weight, planner.learnt.calibration.surplus
    assert weight.sum(axis=1)[:3].tolist() == pytest.approx([2.0, 1.0, 0.0])
    assert surplus.sum(axis=1)[:2].tolist() == pytest.approx([1 - 0.5 - 0.4, 1 - 0.3])


def test_drafts_that_are_never_accepted_are_given_up_and_taken_up_again() -> None:
    planner = looking(table(draft=2.0, row=0.5))
    unlucky = play(planner, 200, 0)
    assert all(unlucky[:3])
    assert 0 < sum(unlucky[60:]) <= 0.15 * 140  # looks between ever longer spells
    lucky = play(planner, 600, 4)
    assert all(lucky[-50:])


def test_a_planner_that_drafts_nothing_says_why(caplog: pytest.LogCaptureFixture) -> None:
    planner = looking(table(draft=40.0, row=20.0))
    assert planner.reason == "no round was planned yet"
    with caplog.at_level(logging.INFO, logger="aerie"):
        opened = [planner.open(HERE) for _ in range(FIRST_SPELL)]
    assert opened == [None] * FIRST_SPELL
    # One level: a row and an extension on top of a round, for 0.75 tokens at first.
    assert planner.reason == (
        "the planner drafts nothing at batch 1, context 512: the best draft (1 level) costs 20.5 ms"
        " on top of a round of 10.0 ms and is expected to add 0.75 tokens; it breaks even at 2.05"
    )
    assert caplog.messages == [planner.reason]
    assert looking(table()).open(HERE) is not None
    assert FixedTree(SHAPE).reason == (
        "a tree of top-k 4, of depth 8, 32 rows verified, in every round"
    )


def test_spells_double_and_looks_are_short() -> None:
    spell = Spell()
    pattern = [spell.allows(False) for _ in range(3 * FIRST_SPELL + 2 * PROBE_ROUNDS)]
    first = [False] * FIRST_SPELL + [True] * PROBE_ROUNDS
    assert pattern == first + [False] * 2 * FIRST_SPELL + [True] * PROBE_ROUNDS
    assert spell.allows(True)
    assert spell == Spell()


def test_exploring_rounds_go_further() -> None:
    steady, curious = looking(table()), looking(table(), 1)
    assert draft_depth(curious, 0.7) > draft_depth(steady, 0.7)


def test_an_empty_batch_plans_nothing() -> None:
    assert looking(table()).open(Situation(0, 0.0)) is None


@pytest.mark.parametrize("batch", [1, 3, 8, 20])
def test_costs_between_and_beyond_the_measured_points(batch: int) -> None:
    prices = table().prices(batch, 512, 64 * batch, 4)
    assert np.all(np.diff(prices.verify) >= -1e-12)
    assert prices.plain == pytest.approx(10e-3, rel=0.05)
    assert prices.draft[0] == 0.0


def test_prices_of_hours_are_not_kept() -> None:
    """One entry for every context and every size of the batch that was ever met would be many."""
    planner, asked = looking(table()), [Situation(1 + n % 8, 512.0 * (n // 8)) for n in range(600)]
    for situation in asked:
        planner.prices(situation)
    assert len(planner._prices) <= _MOST_PRICES
    assert planner.prices(asked[0]) is planner.prices(asked[0])
