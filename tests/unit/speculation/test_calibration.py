"""Calibration: identity at the start, right after enough verdicts, never above the parent."""

from __future__ import annotations

import numpy as np
import torch

from aerie.speculation.calibration import Calibration, accepted_nodes, calibrated
from aerie.speculation.tree import DraftTree, Verdict
from tests.unit.speculation.chains import accepting, chain


def weigh(calibration: Calibration, tree: DraftTree) -> list[float]:
    table = torch.from_numpy(calibration.table()).float()
    weights: list[float] = calibrated(tree, table, 8)[0].tolist()
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
        calibration.learn(tree, chosen, accepted_nodes(chosen, accepting(reached, 3)))
    first, second = weigh(calibration, tree)[1:]
    # About 500 rounds are remembered, shared by two knots; the prior still holds a few percent.
    assert abs(first - 0.6) < 0.08
    assert abs(second - 0.3) < 0.1


def test_a_child_never_weighs_more_than_its_parent() -> None:
    calibration = Calibration()
    calibration.surplus[1, :] = 50.0  # depth 2 is said to be certain
    calibration.weight[1, :] = 50.0
    weights = weigh(calibration, chain([1.0, 0.5, 0.4, 0.3]))
    assert weights == sorted(weights, reverse=True)
    assert weights[2] == weights[1]


def test_what_was_never_proposed_stays_worthless() -> None:
    calibration = Calibration()
    calibration.surplus[:, 0] = 50.0
    calibration.weight[:, 0] = 50.0
    assert weigh(calibration, chain([1.0, 0.0]))[1] == 0.0


def test_accepted_nodes_are_the_rows_of_the_path() -> None:
    chosen = torch.tensor([[True, False, True, True, False, True]])
    path = Verdict(
        accept_index=torch.tensor([[0, 2, -1]]),
        accept_count=torch.tensor([1]),
        bonus_token=torch.tensor([0]),
        status=torch.tensor([0], dtype=torch.int32),
    )
    assert accepted_nodes(chosen, path).tolist() == [[True, False, False, True, False, False]]
