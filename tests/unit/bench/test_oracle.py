"""The oracle's replay: what a narrower, shallower, smaller tree would have accepted."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.bench.rivals import MOST_NODES, Recorded, Text, accept_lengths, best_choice
from aerie.costs.table import CostTable, Sample, Surface
from aerie.speculation.policy import Situation

# Root 0; children 1 (0.6), 2 (0.3); below 1: 3 (0.5), 4 (0.05); below 2: 5 (0.2).
TREE = Recorded(
    tokens=np.array([9, 10, 20, 11, 12, 21]),
    scores=np.array([1.0, 0.6, 0.3, 0.5, 0.05, 0.2], np.float32),
    depths=np.array([0, 1, 1, 2, 2, 2]),
    parents=np.array([-1, 0, 0, 1, 1, 2]),
)


def lengths(tokens: tuple[int, ...], depth: int, width: int) -> list[int]:
    text = Text(tokens, (TREE, *[TREE] * (len(tokens) - 1)))
    return accept_lengths(text, depth, width)[0, :6].tolist()


def test_a_node_is_reached_when_enough_rows_are_verified() -> None:
    # Order by score: root, 1 (0.6), 3 (0.5), 2 (0.3), 5 (0.2), 4 (0.05).
    assert lengths((10, 11), 2, 2) == [0, 1, 2, 2, 2, 2]
    assert lengths((20, 21), 2, 2) == [0, 0, 0, 1, 2, 2]
    assert lengths((10, 12), 2, 2) == [0, 1, 1, 1, 1, 2]
    assert lengths((99, 11), 2, 2) == [0] * 6


def test_a_narrow_draft_lacks_what_it_would_not_have_expanded() -> None:
    assert lengths((20, 21), 2, 1) == [0, 0, 0, 1, 1, 1]
    assert lengths((10, 11), 1, 1) == [0, 1, 1, 1, 1, 1]


def test_the_best_choice_follows_the_costs() -> None:
    def table(row: float, level: float) -> CostTable:
        verify = tuple(Sample(1, 1, n, 1.0 + row * n) for n in (1, MOST_NODES))
        return CostTable(
            Surface(verify),
            Surface((Sample(1, 1, 1, level),)),
            Surface((Sample(1, 1, 1, 1e-3),)),
            {},
        )

    text = Text((10, 11, 9) * 4, tuple([TREE] * 12))
    here = Situation(1, 1.0)
    cheap = best_choice([text], table(1e-4, 1e-3), here, 2)
    assert (cheap.depth, cheap.width, cheap.rows) == (2, 1, 3)
    # Rounds at positions 0, 3, 6, 9 accept two and add one of the target's own.
    assert cheap.tokens_per_round == pytest.approx(3.0)
    dear = best_choice([text], table(50.0, 50.0), here, 2)
    assert (dear.depth, dear.rows) == (0, 1)
