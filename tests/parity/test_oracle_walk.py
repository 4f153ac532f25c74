"""K6 against the dictionary walk, both rules, on random trees and on the edges of every sum."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.oracles.walk import (
    Tree,
    Walked,
    by_row,
    every_node,
    first_child,
    next_siblings,
    random_tree,
    walk_coins,
    walk_match,
)
from tests.parity.backend import each_backend, run, starts

LARGEST_COIN = float(np.float32(1) - np.float32(2**-24))


def layout(trees: Sequence[Tree], extra_rows: int = 0) -> dict[str, Any]:
    """The trees as ragged rows; `extra_rows` belong to no request."""
    nodes = [node for tree in trees for node in by_row(tree)]
    sides = [row for tree in trees for _, row in sorted(next_siblings(tree).items())]

    def padded(values: list[int]) -> np.ndarray:
        return np.array(values + [-1] * extra_rows, dtype=np.int64)

    return {
        "qo_indptr": starts(len(by_row(tree)) for tree in trees),
        "draft_tokens": padded([node["token"] for node in nodes]),
        "first_child_row": padded([first_child(node) for node in nodes]),
        "next_sibling_row": padded(sides),
    }


def column_of(trees: Sequence[Tree], field: str) -> list[Any]:
    return [node[field] for tree in trees for node in by_row(tree)]


def check(found: SimpleNamespace, walks: Sequence[Walked], depth: int) -> None:
    for b, walked in enumerate(walks):
        padding = [-1] * (depth + 1 - len(walked.rows))
        assert found.accept_index[b].tolist() == walked.rows + padding
        assert int(found.accept_count[b]) == len(walked.tokens)
        assert int(found.bonus_token[b]) == walked.bonus


Rows = Callable[[random.Random, int], list[float]]


def smooth(chooser: random.Random, vocabulary: int) -> list[float]:
    raw = [chooser.expovariate(1.0) for _ in range(vocabulary)]
    return [float(np.float32(value / sum(raw))) for value in raw]


def dyadic(chooser: random.Random, vocabulary: int) -> list[float]:
    """Multiples of 1/16 with sum 1: every running sum is exact, so edges can be hit."""
    counts = [0] * vocabulary
    for _ in range(16):
        counts[chooser.randrange(vocabulary)] += 1
    return [count / 16 for count in counts]


def certain(chooser: random.Random, vocabulary: int) -> list[float]:
    row = [0.0] * vocabulary
    row[chooser.randrange(vocabulary)] = 1.0
    return row


PROBABILITIES: dict[str, Rows] = {"smooth": smooth, "dyadic": dyadic, "certain": certain}


def coin_of(chooser: random.Random) -> float:
    sixteenth = chooser.randrange(16) / 16
    return chooser.choice([sixteenth, float(np.float32(chooser.random() * 0.999)), LARGEST_COIN])


@each_backend
@pytest.mark.parametrize("kind", PROBABILITIES)
@pytest.mark.parametrize(
    ("batch", "n_nodes", "vocabulary", "depth"),
    [(1, 1, 5, 0), (3, 2, 4, 1), (16, 12, 6, 3), (40, 25, 7, 6), (128, 8, 3, 4), (2, 128, 40, 9)],
)
def test_coins(
    backend: str, kind: str, batch: int, n_nodes: int, vocabulary: int, depth: int
) -> None:
    chooser = random.Random(f"coins {kind} {batch} {n_nodes}")
    trees = [random_tree(chooser, n_nodes, vocabulary, depth) for _ in range(batch)]
    for tree in trees:
        for node in every_node(tree):
            node["probas"] = PROBABILITIES[kind](chooser, vocabulary)
    coins = [[coin_of(chooser) for _ in range(depth + 2)] for _ in trees]
    found = run(
        backend,
        "draft_tree_reject_sample",
        **layout(trees),
        target_probas=np.array(column_of(trees, "probas"), dtype=np.float32),
        coins=np.array(coins, dtype=np.float32),
        tree_depth=depth,
    )
    walks = [walk_coins(tree, row, row[-1]) for tree, row in zip(trees, coins, strict=True)]
    check(found, walks, depth)


@each_backend
@pytest.mark.parametrize(
    ("batch", "n_nodes", "vocabulary", "depth"),
    [(1, 1, 5, 0), (5, 2, 2, 1), (16, 12, 4, 3), (128, 20, 3, 5), (3, 128, 3, 127)],
)
def test_match(backend: str, batch: int, n_nodes: int, vocabulary: int, depth: int) -> None:
    chooser = random.Random(f"match {batch} {n_nodes}")
    trees = [random_tree(chooser, n_nodes, vocabulary, depth) for _ in range(batch)]
    for tree in trees:
        for node in every_node(tree):
            node["target"] = chooser.randrange(vocabulary)
    found = run(
        backend,
        "draft_tree_reject_sample",
        **layout(trees, extra_rows=3),
        target_tokens=np.array([*column_of(trees, "target"), 0, 0, 0], dtype=np.int64),
        tree_depth=depth,
    )
    check(found, [walk_match(tree) for tree in trees], depth)


def chain(tokens: Sequence[int], says: Sequence[int]) -> Tree:
    """A path below the root; `says` is the target's token of every row, root first."""
    root: Tree = {"row": 0, "depth": 0, "token": 0, "target": says[0], "children": {}}
    node = root
    for row, token in enumerate(tokens, 1):
        child: Tree = {"row": row, "token": token, "target": says[row], "children": {}}
        node["children"][token] = child
        node = child
    return root


@each_backend
def test_every_accept_length_in_one_batch(backend: str) -> None:
    path = [3, 1, 4, 1, 5]
    trees = []
    for accepted in range(len(path) + 1):
        says = [*path, 9]
        says[accepted] = 9
        trees.append(chain(path, says))
    found = run(
        backend,
        "draft_tree_reject_sample",
        **layout(trees),
        target_tokens=np.array(column_of(trees, "target"), dtype=np.int64),
        tree_depth=len(path),
    )
    check(found, [walk_match(tree) for tree in trees], len(path))
    assert found.accept_count.tolist() == [0, 1, 2, 3, 4, 5]


@each_backend
@pytest.mark.parametrize("has_rows", [(True, False, True), (False, False, False), ()])
def test_requests_without_rows(backend: str, has_rows: tuple[bool, ...]) -> None:
    trees = [chain([2], [2, 1]) for _ in range(sum(has_rows))]
    inputs = layout(trees)
    inputs["qo_indptr"] = starts(2 * has for has in has_rows)
    found = run(
        backend,
        "draft_tree_reject_sample",
        **inputs,
        target_tokens=np.array(column_of(trees, "target"), dtype=np.int64),
        tree_depth=1,
    )
    for b, has in enumerate(has_rows):
        assert found.accept_index[b].tolist() == ([0, 1] if has else [-1, -1])
        assert (int(found.accept_count[b]), int(found.bonus_token[b])) == (
            (1, 1) if has else (0, -1)
        )
