"""The two acceptance rules of K6 on one request's tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aerie.kernels.numpy_types import Floats, Ints
from aerie.kernels.reference.refusals import Refusals
from aerie.kernels.status import Status


@dataclass(frozen=True)
class Walk:
    """One request's rows: tokens and links, row 0 the root."""

    tokens: Ints
    first_child: Ints
    next_sibling: Ints

    def children(self, row: int) -> list[int]:
        """Rows of a node's children in link order."""
        found = []
        child = int(self.first_child[row])
        while child >= 0:
            found.append(child)
            child = int(self.next_sibling[child])
        return found

    def check(self, refusals: Refusals, b: int) -> None:
        """Refuse links that are not one forward-pointing tree, and siblings of equal tokens."""
        n_rows = len(self.tokens)
        pointed_at = np.zeros(n_rows, np.int64)
        for row in range(n_rows):
            for link in (int(self.first_child[row]), int(self.next_sibling[row])):
                if link == -1:
                    continue
                if not row < link < n_rows:
                    refusals.add(b, Status.BROKEN_TREE, row)
                    return
                pointed_at[link] += 1
        for row in range(n_rows):
            if pointed_at[row] != (row > 0):
                refusals.add(b, Status.BROKEN_TREE, row)
                return
        if n_rows and self.next_sibling[0] != -1:
            refusals.add(b, Status.BROKEN_TREE, 0)
            return
        for row in range(n_rows):
            ids = [int(self.tokens[child]) for child in self.children(row)]
            for token in ids:
                if ids.count(token) > 1:
                    refusals.add(b, Status.DUPLICATE_SIBLING, token)

    def match(self, target_tokens: Ints, depth: int) -> tuple[list[int], int] | None:
        """Follow the target's own tokens; None when the walk would pass `depth`."""
        path = [0]
        while True:
            wanted = int(target_tokens[path[-1]])
            child = next(
                (row for row in self.children(path[-1]) if self.tokens[row] == wanted), None
            )
            if child is None:
                return path, wanted
            if len(path) > depth:
                return None
            path.append(child)

    def toss(self, probas: Floats, coins: Floats, depth: int) -> tuple[list[int], int] | None:
        """Accept a child where the coin falls; the bonus token comes from what is left."""
        path = [0]
        while True:
            node = path[-1]
            children = self.children(node)
            child = self._fall(children, probas[node], float(coins[len(path) - 1]))
            if child is None:
                rejected = self.tokens[children]
                return path, _bonus(probas[node], rejected, float(coins[-1]))
            if len(path) > depth:
                return None
            path.append(child)

    def _fall(self, children: list[int], probas: Floats, coin: float) -> int | None:
        running = 0.0
        for child in children:
            running += float(probas[self.tokens[child]])
            if coin < running:
                return child
        return None


def _bonus(probas: Floats, rejected: Ints, coin: float) -> int:
    kept = probas.astype(np.float64)
    kept[rejected] = 0.0
    running = np.cumsum(kept)
    if running[-1] == 0.0:
        return int(np.argmax(probas))
    return int(np.flatnonzero(running > coin * running[-1])[0])
