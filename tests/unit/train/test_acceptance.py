"""The walk over drafts, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.train.acceptance import TREE3, Walked, bootstrap_interval, chain, mean_length, tree, walk


def ranks(rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


def test_chain_by_hand() -> None:
    # Roots 0, 2 and 3 are visited: one accepted, none, two.
    table = ranks([[0, 1], [9, 9], [5, 0], [0, 0], [9, 9], [9, 9], [0, 0]])
    assert walk(table, chain(2)) == Walked(drafts=3, accepted=3)
    assert walk(table, chain(1)) == Walked(drafts=4, accepted=2)


def test_every_token_is_emitted_once() -> None:
    random = np.random.default_rng(1)
    table = random.choice([0, 1, 2, 3], p=[0.7, 0.15, 0.1, 0.05], size=(500, 7))
    for draft in (chain(3), chain(5), TREE3):
        walked = walk(table, draft)
        # Rounds emit accepted + 1 tokens each, and end within one round of the last token.
        assert 0 <= 500 - (walked.drafts + walked.accepted) <= draft.depth


def test_perfect_and_hopeless_drafts() -> None:
    assert walk(np.zeros((41, 3), dtype=np.int64), chain(3)) == Walked(10, 30)
    assert walk(np.ones((41, 3), dtype=np.int64), chain(3)) == Walked(38, 0)


def test_tree_takes_a_second_choice() -> None:
    assert len(TREE3.paths) == 11
    assert TREE3.depth == 3
    assert (2, 0) in TREE3.paths
    assert (1, 1) not in TREE3.paths
    table = ranks(
        [[1, 0, 0], [9, 9, 9], [9, 9, 9], [9, 9, 9], [2, 0, 0], [9] * 3, [9] * 3, [9] * 3]
    )
    assert walk(table, TREE3) == Walked(2, 5)
    assert walk(table, chain(3)) == Walked(5, 0)


def test_a_tree_holds_every_prefix() -> None:
    assert tree("t", [(0, 1, 2)]).paths == {(0,), (0, 1), (0, 1, 2)}


def test_mean_and_interval() -> None:
    walks = [Walked(10, 20), Walked(30, 60)]
    assert mean_length(walks) == pytest.approx(3.0)
    assert bootstrap_interval(walks) == pytest.approx((3.0, 3.0))
    spread = [Walked(10, n) for n in range(20)]
    low, high = bootstrap_interval(spread)
    assert low < mean_length(spread) < high


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(AssertionError):
        walk(np.zeros((10, 2), dtype=np.int64), chain(3))
