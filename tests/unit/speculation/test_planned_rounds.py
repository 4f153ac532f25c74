"""Shapes of captured drafts: one width for all levels, chosen together with their number."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from aerie.speculation.device_policy import Widths
from aerie.speculation.planned_rounds import WIDTHS, PlannedRounds
from aerie.speculation.round_ops import RoundOps

from aerie.speculation.costs import CostTable, Sample, Surface
from aerie.speculation.planner import Planner
from aerie.speculation.policy import Situation, TreeShape
from tests.unit.speculation.test_planner import table

SHAPE = TreeShape(top_k=8, depth=8, verify=32)
MANY = Situation(batch=8, context=512.0)
ROWS = (8, 16, 32, 64, 128, 256)


def planned(costs: CostTable) -> PlannedRounds:
    # The choice of nodes is another matter: nothing here launches anything.
    return PlannedRounds(Planner(SHAPE, costs, 0), ROWS, "cpu", cast(RoundOps, None))


def widening(costs: CostTable, step: float) -> CostTable:
    """The same table, with so many milliseconds more for each further node that a level feeds."""
    samples = tuple(
        Sample(batch, 512, batch * width, (1.0 + step * (width - 1)) / 1e3)
        for batch in (1, 8)
        for width in (1, 8)
    )
    return replace(costs, draft=Surface(samples))


def shape_of(policy: PlannedRounds) -> Widths:
    widths = policy.open(MANY)
    assert widths is not None and len(set(widths)) <= 1
    return widths


def test_it_is_the_best_of_all_shapes() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        policy = planned(widening(table(row=generator.uniform(0, 0.1)), generator.uniform(0, 0.5)))
        steps = generator.uniform(0, 0.6, policy._gains[:, 1:].shape).cumsum(axis=1)
        policy._gains[:, 1:] = steps / 3 * np.linspace(1, 0.2, SHAPE.depth)[:, None]
        found = policy.open(MANY)
        plan = policy.planner.last
        assert plan is not None
        values: dict[Widths, float] = {(): 0.0}
        for width in WIDTHS:
            value = 0.0
            for depth in range(1, SHAPE.depth):
                level = policy.planner.level(depth, policy._gains[depth - 1].astype(np.float64))
                share = np.minimum(level.tokens / MANY.batch, 1.0)
                worth = (level.tokens - plan.rate * share * level.verify)[: width + 1].max()
                value += worth - plan.rate * plan.prices.draft[width]
                values[(width,) * depth] = value
        assert found is not None
        assert values[found] == pytest.approx(max(values.values()))


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
    assert policy.open(MANY) == ()


def test_a_situation_in_which_plain_decoding_is_faster_drafts_nothing() -> None:
    assert planned(table(draft=30.0, row=10.0)).open(MANY) is None
