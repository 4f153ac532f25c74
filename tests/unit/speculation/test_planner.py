"""The planner is not decoration: change a cost and the plan changes as the rule predicts."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from aerie.speculation.costs import CostTable, Sample, Surface
from aerie.speculation.planner import Planner
from aerie.speculation.policy import FixedTree, Situation, TreeShape
from aerie.speculation.running import FIRST_SPELL, PROBE_ROUNDS, Spell
from tests.unit.speculation.chains import accepting, chain

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


def draft_depth(planner: Planner, survival: float) -> int:
    """Levels drafted when each level keeps `survival` of the one above; 0: none at all."""
    growth = planner.open(HERE)
    if growth is None:
        return 0
    for depth in range(1, SHAPE.depth + 1):
        mass = survival**depth
        gains = np.cumsum([0.0, mass, mass / 64, mass / 64, mass / 64]).astype(np.float32)
        if not growth.next_width(depth, lambda g=gains: g):  # type: ignore[misc]
            return depth
    raise AssertionError("the last level was not the last")


def verified(planner: Planner, scores: list[float]) -> int:
    assert planner.open(HERE) is not None
    return int(planner.select(chain(scores, SHAPE.depth)).sum())


def test_dearer_drafting_drafts_less() -> None:
    costs = (0.5, 1.0, 2.0, 4.0)
    depths = [draft_depth(Planner(SHAPE, table(draft=cost), 0), 0.8) for cost in costs]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > depths[-1]


def test_drafting_stops_at_the_level_the_rule_names() -> None:
    """Doubled draft cost stops earlier: each plan ends where a level's worth falls below it."""
    stops = []
    for level in (1.0, 2.0):
        costs = table(draft=1.0)
        planner = Planner(SHAPE, replace(costs, draft=costs.draft.scaled(level)), 0)
        stop = draft_depth(planner, 0.8)
        assert planner.last is not None
        price = planner.last.rate * (level + 0.1) / 1e3  # one more node: a level and a row
        ratio = planner.running.ratios[0]
        assert ratio * 0.8 ** (stop - 1) > price
        assert stop == SHAPE.depth or ratio * 0.8**stop <= price
        stops.append(stop)
    assert stops[1] < stops[0]


def test_a_cliff_in_the_verify_cost_is_not_stepped_over() -> None:
    scores = [1.0, *(0.9 - 0.01 * i for i in range(31))]
    assert verified(Planner(SHAPE, table(row=0.01), 0), scores) == 32
    rows = [Sample(1, 512, n, (10 + (0 if n <= 16 else 200)) / 1e3) for n in range(1, 65)]
    cliff = Planner(SHAPE, replace(table(), verify=Surface(tuple(rows))), 0)
    assert verified(cliff, scores) == 16


def test_a_cost_that_falls_again_is_used() -> None:
    dear_middle = [Sample(1, 512, n, (10 + (100 if 4 < n < 28 else 0)) / 1e3) for n in range(1, 65)]
    planner = Planner(SHAPE, replace(table(), verify=Surface(tuple(dear_middle))), 0)
    assert verified(planner, [1.0, *[0.3] * 31]) == 32


def test_plain_decoding_when_drafting_is_dearer_than_it_brings() -> None:
    planner = Planner(SHAPE, table(draft=30.0, row=10.0), 0)
    assert planner.open(HERE) is None
    tree = chain([1.0, 0.9])
    assert planner.select(tree).tolist() == [[True, False]]
    planner.learn(tree, planner.select(tree), accepting(0, 2))  # there is nothing to learn from


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
        chosen = planner.select(tree)
        n_rows = int(chosen.sum())
        planner.learn(tree, chosen, accepting(min(n_accepted, n_rows - 1), n_rows))
    return drafted


def test_drafts_that_are_never_accepted_are_given_up_and_taken_up_again() -> None:
    planner = Planner(SHAPE, table(draft=2.0, row=0.5), 0)
    unlucky = play(planner, 200, 0)
    assert all(unlucky[:3])
    assert 0 < sum(unlucky[60:]) <= 0.15 * 140  # looks between ever longer spells
    lucky = play(planner, 600, 4)
    assert all(lucky[-50:])


def test_a_planner_that_drafts_nothing_says_why(caplog: pytest.LogCaptureFixture) -> None:
    planner = Planner(SHAPE, table(draft=40.0, row=20.0), 0)
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
    assert Planner(SHAPE, table(), 0).open(HERE) is not None
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
    steady, curious = Planner(SHAPE, table(), 0), Planner(SHAPE, table(), 1)
    assert draft_depth(curious, 0.7) > draft_depth(steady, 0.7)


def test_an_empty_batch_plans_nothing() -> None:
    assert Planner(SHAPE, table(), 0).open(Situation(0, 0.0)) is None


@pytest.mark.parametrize("batch", [1, 3, 8, 20])
def test_costs_between_and_beyond_the_measured_points(batch: int) -> None:
    prices = table().prices(batch, 512, 64 * batch, 4)
    assert np.all(np.diff(prices.verify) >= -1e-12)
    assert prices.plain == pytest.approx(10e-3, rel=0.05)
    assert prices.draft[0] == 0.0
