"""How many rows to agree on: by what rows were worth, and what they cost."""

from __future__ import annotations

import numpy as np

from aerie.speculation.worth import Worth

SIZES = np.array([2, 4, 8, 16])
FLAT = np.array([1.0, 1.1, 1.2, 1.3])


def test_nothing_is_agreed_before_anything_was_seen() -> None:
    worth = Worth()
    assert worth.best(2, SIZES, FLAT, 1.0) is None
    worth.follow(2, np.ones(2), 16, 2.0)  # roots alone
    assert worth.best(2, SIZES, FLAT, 1.0) is None


def test_rows_are_bought_while_they_are_worth_their_time() -> None:
    worth = Worth()
    worth.follow(2, np.array([1.0, 0.5, 1.0, 0.4, 0.3, 0.2, 0.01, 0.01]), 16, 9.0)
    steep = np.array([1.0, 1.2, 3.0, 9.0])
    assert worth.best(2, SIZES, steep, 1.0) == 1
    assert worth.best(2, SIZES, steep, 0.1) == 2
    assert worth.best(3, SIZES, steep, 1.0) is None


def test_rows_never_verified_are_worth_less_than_the_last_ones() -> None:
    worth = Worth()
    worth.follow(2, np.array([1.0, 1.0, 0.5, 0.2]), 16, 9.0)
    curve = worth.curves[2]
    assert len(curve) == 16 and bool((np.diff(curve) <= 0).all())
    # At a price below even those, more is asked for: that is how it learns of better times.
    assert worth.best(2, SIZES, FLAT, 0.01) == 3


def test_what_was_seen_is_forgotten_slowly() -> None:
    worth = Worth()
    worth.follow(1, np.array([1.0, 0.9]), 2, 1.0)
    for _ in range(30):
        worth.follow(1, np.array([1.0, 0.1]), 2, 1.0)
    assert abs(worth.curves[1][1] - 0.1) < 0.01


def test_rows_never_verified_share_what_is_left() -> None:
    """Four good rows are no reason to expect twelve more of them."""
    worth, good = Worth(), np.array([1.0, 0.9, 0.8, 0.7])
    worth.follow(1, good, 16, 0.3)
    curve = worth.curves[1]
    assert np.array_equal(curve[:4], good)
    assert abs(curve[4:].sum() - 0.3) < 1e-9
