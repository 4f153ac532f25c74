"""The two acceptance rules of K6 on one request's tree.

Rows and links are plain Python lists: a tree has a few dozen rows, each of which cost its target
hundreds of microseconds, and walking them costs less than starting that many array operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aerie.kernels.numpy_types import Floats
from aerie.kernels.status import Status


class BrokenTreeError(Exception):
    """A tree that cannot be walked: its status word and the offending value."""

    def __init__(self, code: Status, value: int) -> None:
        super().__init__(code, value)
        self.code = code
        self.value = value


@dataclass(frozen=True)
class Tree:
    """One request's rows: tokens and links, row 0 the root."""

    tokens: list[int]
    first_child: list[int]
    next_sibling: list[int]

    def check(self) -> None:
        """Raise unless every row but the root has one link to it, and siblings differ."""
        n_rows = len(self.tokens)
        parent = [-1] * n_rows
        n_links = [0] * n_rows
        for row, (child, sibling) in enumerate(
            zip(self.first_child, self.next_sibling, strict=True)
        ):
            if child != -1:
                if not row < child < n_rows:
                    raise BrokenTreeError(Status.BROKEN_TREE, row)
                n_links[child] += 1
                parent[child] = row
            if sibling != -1:
                if not row < sibling < n_rows:
                    raise BrokenTreeError(Status.BROKEN_TREE, row)
                n_links[sibling] += 1
                parent[sibling] = parent[row]
        expected = [0] + [1] * (n_rows - 1)
        if n_rows and n_links != expected:
            row = next(row for row in range(n_rows) if n_links[row] != expected[row])
            raise BrokenTreeError(Status.BROKEN_TREE, row)
        if n_rows and self.next_sibling[0] != -1:
            raise BrokenTreeError(Status.BROKEN_TREE, 0)
        self._check_siblings(parent)

    def _check_siblings(self, parent: list[int]) -> None:
        named = list(zip(parent, self.tokens, strict=True))
        if len(set(named)) < len(named):
            twin = next(entry for entry in named if named.count(entry) > 1)
            raise BrokenTreeError(Status.DUPLICATE_SIBLING, twin[1])

    def children(self, row: int) -> list[int]:
        """Rows of a node's children in link order."""
        found, child = [], self.first_child[row]
        while child >= 0:
            found.append(child)
            child = self.next_sibling[child]
        return found

    def match(self, said: list[int], depth: int) -> tuple[list[int], int]:
        """Follow the target's own tokens; raises when that would pass `depth`."""
        path = [0] if said else []
        while path:
            child = self.first_child[path[-1]]
            while child >= 0 and self.tokens[child] != said[path[-1]]:
                child = self.next_sibling[child]
            if child < 0:
                return path, said[path[-1]]
            _go_on(path, child, depth)
        return path, -1

    def toss(self, probas: Floats, coins: list[float], depth: int) -> tuple[list[int], int]:
        """Accept a child where the coin falls; the bonus token comes from what is left."""
        self._check_coins(probas, coins)
        path = [0] if self.tokens else []
        while path:
            running = 0.0
            children = self.children(path[-1])
            for child in children:
                running += probas.item(path[-1], self.tokens[child])
                if coins[len(path) - 1] < running:
                    _go_on(path, child, depth)
                    break
            else:
                rejected = [self.tokens[child] for child in children]
                return path, _bonus(probas[path[-1]], rejected, coins[-1])
        return path, -1

    def _check_coins(self, probas: Floats, coins: list[float]) -> None:
        # The root's token was decided in an earlier round and is not looked up.
        for token in self.tokens[1:]:
            if not 0 <= token < probas.shape[1]:
                raise BrokenTreeError(Status.OUT_OF_RANGE, token)
        is_bad = ~((probas >= 0) & (probas < np.inf)).all(axis=1)
        if is_bad.any():
            raise BrokenTreeError(Status.NOT_FINITE, int(is_bad.argmax()))
        for column, coin in enumerate(coins):
            if not 0.0 <= coin < 1.0:
                raise BrokenTreeError(Status.BAD_PARAMETER, column)


def _go_on(path_out: list[int], child: int, depth: int) -> None:
    if len(path_out) > depth:
        raise BrokenTreeError(Status.TOO_DEEP, depth + 1)
    path_out.append(child)


def _bonus(probas: Floats, rejected: list[int], coin: float) -> int:
    """A token of a distribution without the rejected ones."""
    kept = probas.astype(np.float64)
    kept[rejected] = 0.0
    running = kept.cumsum()
    if running[-1] == 0.0:
        return int(probas.argmax())
    return int((running > coin * running[-1]).argmax())
