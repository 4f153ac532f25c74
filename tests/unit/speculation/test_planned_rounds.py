"""Shapes of captured drafts: one width for all levels, chosen together with their number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aerie.costs.table import CostTable, Sample, Surface
from aerie.speculation.offer import Offers
from aerie.speculation.planner import WIDTHS, Planner, Round
from aerie.speculation.policy import Settled, Situation, TreeShape, Widths
from tests.unit.speculation.test_planner import table

SHAPE = TreeShape(top_k=8, depth=8, verify=32)
MANY = Situation(batch=8, context=512.0)
ROWS = (8, 16, 32, 64, 128, 256)


def planned(costs: CostTable) -> Planner:
    """A planner whose drafts are settled before they begin, and verified in sizes of graphs."""
    return Planner(SHAPE, costs, 0, Offers(ROWS, SHAPE.verify, "cpu"), looks=False)


def opened(policy: Planner) -> Round:
    growth = policy.open(MANY)
    assert isinstance(growth, Round) and growth.widths is not None
    return growth


def widening(costs: CostTable, step: float) -> CostTable:
    """The same table, with so many milliseconds more for each further node that a level feeds."""
    samples = tuple(
        Sample(batch, 512, batch * width, (1.0 + step * (width - 1)) / 1e3)
        for batch in (1, 8)
        for width in (1, 8)
    )
    return replace(costs, draft=Surface(samples))


def shape_of(policy: Planner) -> Widths:
    widths = opened(policy).widths
    assert widths is not None and len(set(widths)) <= 1
    return widths


def test_it_is_the_best_of_all_shapes() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        policy = planned(widening(table(row=generator.uniform(0, 0.1)), generator.uniform(0, 0.5)))
        steps = generator.uniform(0, 0.6, policy._gains[:, 1:].shape).cumsum(axis=1)
        policy._gains[:, 1:] = steps / 3 * np.linspace(1, 0.2, SHAPE.depth)[:, None]
        plan = opened(policy)
        values: dict[Widths, float] = {(): 0.0}
        for width in WIDTHS:
            value = 0.0
            for depth in range(1, SHAPE.depth):
                level = policy.level(plan, depth, policy._gains[depth - 1].astype(np.float64))
                share = np.minimum(level.tokens / MANY.batch, 1.0)
                worth = (level.tokens - plan.rate * share * level.verify)[: width + 1].max()
                value += worth - plan.rate * plan.prices.draft[width]
                values[(width,) * depth] = value
        assert plan.widths is not None
        assert values[plan.widths] == pytest.approx(max(values.values()))


def test_one_wide_level_does_not_make_all_levels_wide() -> None:
    policy = planned(widening(table(row=0.01), 0.4))
    # The first level alone would gain from four nodes; seven levels as wide are not worth it.
    policy._gains[:, 1:] = 0.85
    policy._gains[0, 4:] = 1.0
    assert shape_of(policy) == (1,) * (SHAPE.depth - 1)
    policy = planned(widening(table(row=0.01), 0.0))
    policy._gains[:, 1:] = 0.85
    policy._gains[0, 4:] = 1.0
    assert shape_of(policy) == (4,) * (SHAPE.depth - 1)


def test_a_level_behind_one_that_does_not_pay_is_reached() -> None:
    policy = planned(widening(table(row=0.01), 0.0))
    policy._gains[:, 1:] = 0.9
    policy._gains[2, 1:] = 0.05  # on average, until now
    assert len(shape_of(policy)) == SHAPE.depth - 1


def test_nothing_beyond_the_children_of_the_root_where_no_level_pays() -> None:
    policy = planned(table())
    policy._gains[:, 1:] = 1e-4
    assert shape_of(policy) == ()


def test_a_situation_in_which_plain_decoding_is_faster_drafts_nothing() -> None:
    assert planned(table(draft=30.0, row=10.0)).open(MANY) is None


def test_a_settled_draft_does_as_it_was_told() -> None:
    growth = opened(planned(table()))
    assert growth.widths is not None

    def never() -> None:
        raise AssertionError("a captured draft is not looked at")

    told = [growth.next_width(depth, never) for depth in range(1, SHAPE.depth + 1)]
    assert told == [*growth.widths, *[0] * (SHAPE.depth - len(growth.widths))]
    again = Settled(growth.widths)
    assert [again.next_width(depth, never) for depth in range(1, SHAPE.depth + 1)] == told


def test_the_nearest_recorded_shape_does_instead() -> None:
    policy = planned(widening(table(row=0.01), 0.4))
    policy._gains[:, 1:] = 0.85
    growth = opened(policy)
    assert growth.widths == (1,) * 7
    for known, expected in (
        ([(8,) * 7, (2,) * 7, ()], (2,) * 7),  # the cheapest that is deep and wide enough
        ([(), (4,) * 3, (8,) * 2], (4,) * 3),  # the deepest where none is
    ):
        settled = policy.settle(growth, known)
        assert settled.widths == expected
        assert isinstance(settled, Round) and settled.fed == list(expected)


def test_no_more_rows_are_offered_than_trees_could_have() -> None:
    policy = planned(table())
    assert policy.most_rows(1) == 32
    assert policy.most_rows(8) == 256
    assert policy.offers.of(2).sizes.tolist() == [8, 16, 32, 64]
