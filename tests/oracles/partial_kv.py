"""Blocks of a text judged by hand: masses in decimals of fifty digits, choices by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from itertools import combinations

DIGITS = 50
Rows = Sequence[Sequence[float]]


def masses(queries: Rows, keys: Rows, size: int) -> list[float]:
    """What every block of `size` keys gets of the attention of all queries together."""
    with localcontext() as context:
        context.prec = DIGITS
        total = [Decimal(0)] * -(-len(keys) // size)
        for query in queries:
            scores = [_product(query, key).exp() for key in keys]
            whole = sum(scores, Decimal(0))
            for position, score in enumerate(scores):
                total[position // size] += score / whole
        return [float(mass) for mass in total]


def _product(left: Sequence[float], right: Sequence[float]) -> Decimal:
    return sum((Decimal(a) * Decimal(b) for a, b in zip(left, right, strict=True)), Decimal(0))


def bounds(queries: Rows, keys: Rows, size: int) -> list[float]:
    """The larger product with a block's extremes, averaged over the queries."""
    found = []
    for first in range(0, len(keys), size):
        channels = list(zip(*keys[first : first + size], strict=True))
        corners = [max(own) for own in channels], [min(own) for own in channels]
        best = [max(float(_product(query, corner)) for corner in corners) for query in queries]
        found.append(sum(best) / len(best))
    return found


def best_blocks(scores: Sequence[float], kept: tuple[int, int, int]) -> list[int]:
    """Sinks, window, and of all sets of those between the one of the highest sum.

    Scores are all different, or the lowest numbers win.
    """
    n_sink, n_retrieval, n_window = kept
    everything = list(range(len(scores)))
    fixed = {*everything[:n_sink], *everything[-n_window:]}
    between = [own for own in everything if own not in fixed]
    sets = combinations(between, min(n_retrieval, len(between)))
    best = max(sets, key=lambda own: (sum(scores[j] for j in own), [-j for j in own]))
    return sorted([*fixed, *best])


def spliced(parents: Sequence[int], n_run: int) -> list[int]:
    """Depths of the nodes of a tree that hangs below a run, the root and the run left out."""

    def depth(node: int) -> int:
        return 0 if node == 0 else 1 + depth(parents[node])

    return [n_run + depth(node) for node in range(1, len(parents))]
