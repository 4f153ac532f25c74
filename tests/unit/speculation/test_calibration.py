"""Calibration: identity at the start, right after enough verdicts, never above the parent."""

from __future__ import annotations

import numpy as np
import torch

from aerie.costs.table import CostTable, Sample, Surface
from aerie.speculation.calibration import Calibration, corrected
from aerie.speculation.offer import Offers
from aerie.speculation.planner import Planner
from aerie.speculation.policy import Situation, TreeShape
from aerie.speculation.tree import DraftTree
from tests.unit.speculation.chains import chain, selected


def weigh(calibration: Calibration, tree: DraftTree) -> list[float]:
    """Every path by itself."""
    weights: list[float] = corrected(tree.scores, tree.depths, calibration.table())[0].tolist()
    return weights


def test_identity_before_anything_was_seen() -> None:
    scores = [1.0, 0.9, 0.45, 0.45, 0.01, 0.0]
    assert weigh(Calibration(), chain(scores)) == torch.tensor(scores).tolist()


def test_an_overconfident_draft_is_believed_less() -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration()
    tree = chain([1.0, 0.9, 0.8])
    chosen = torch.ones((1, 3), dtype=torch.bool)
    for _ in range(2000):
        reached = 0
        if rng.random() < 0.6:
            reached = 2 if rng.random() < 0.5 else 1
        accepted = torch.tensor([[row <= reached for row in range(3)]])
        calibration.learn(tree.scores, tree.depths, chosen, accepted)
    first, second = weigh(calibration, tree)[1:]
    # About 500 rounds are remembered, shared by two knots; the prior still holds a few percent.
    assert abs(first - 0.6) < 0.08
    assert abs(second - 0.3) < 0.1


def test_a_child_is_not_chosen_without_its_parent() -> None:
    """However much more is thought of its depth, in the choice it weighs no more than that."""
    rows = tuple(Sample(1, 512, n, (10 + 0.1 * n) / 1e3) for n in (1, 64))
    one = Surface((Sample(1, 512, 1, 1e-3),))
    shape, costs = TreeShape(2, 4, 8), CostTable(Surface(rows), one, one, {})
    planner = Planner(shape, costs, 0, Offers(None, shape.verify, "cpu"), looks=True)
    planner.learnt.calibration.surplus[1:3, :] = 50.0  # depths 2 and 3 are said to be certain
    planner.learnt.calibration.weight[:3, :] = [[5000.0], [50.0], [50.0]]  # and depth 1 is right
    for first in (0.9, 0.0005):
        tree = chain([1.0, first, first * 0.9, first * 0.8])
        assert weigh(planner.learnt.calibration, tree)[2] > 0.6
        planner.prepare(planner.open(Situation(1, 512.0)), 1, is_steady=False)
        expected = [True] * 4 if first > 0.5 else [True, False, False, False]
        assert selected(planner, tree).tolist() == [expected]


def test_what_was_never_proposed_stays_worthless() -> None:
    calibration = Calibration()
    calibration.surplus[:, 0] = 50.0
    calibration.weight[:, 0] = 50.0
    assert weigh(calibration, chain([1.0, 0.0]))[1] == 0.0
