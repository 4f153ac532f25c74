"""Brute force over every ancestor-closed subset of a small tree: the best mass of m nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

MOST_NODES = 12  # 2**11 subsets hold the root; more is no longer small


def is_closed(chosen: Iterable[int], parents: Sequence[int]) -> bool:
    """Whether the set holds the root, and the parent of every other node it holds."""
    inside = set(chosen)
    return 0 in inside and all(parents[node] in inside for node in inside if node != 0)


def closed_subsets(nodes: Sequence[int], parents: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every ancestor-closed subset of `nodes`, by trying each set of them."""
    assert len(nodes) <= MOST_NODES, f"{len(nodes)} nodes, brute force takes {MOST_NODES}"
    for bits in range(1, 1 << len(nodes)):
        chosen = tuple(node for index, node in enumerate(nodes) if bits >> index & 1)
        if is_closed(chosen, parents):
            yield chosen


def best_masses(
    nodes: Sequence[int], parents: Sequence[int], scores: Sequence[float]
) -> list[float]:
    """Entry m is the largest score mass of an ancestor-closed subset of exactly m of `nodes`."""
    best = [0.0] + [-math.inf] * len(nodes)
    for chosen in closed_subsets(nodes, parents):
        mass = math.fsum(scores[node] for node in chosen)
        best[len(chosen)] = max(best[len(chosen)], mass)
    return best


def best_mass_within(masses: Sequence[float], most: int) -> float:
    """The largest mass of at most `most` nodes, from `best_masses`."""
    return max(masses[: most + 1])


def gains(
    old: Sequence[int],
    new: Sequence[int],
    parents: Sequence[int],
    scores: Sequence[float],
    most: int,
) -> list[float]:
    """Entry k: mass that the first k of `new` add to the best tree of at most `most` nodes."""
    bests = [
        best_mass_within(best_masses([*old, *new[:k]], parents, scores), most)
        for k in range(len(new) + 1)
    ]
    return [best - bests[0] for best in bests]


def planner_order(scores: Sequence[float]) -> list[int]:
    """Node ids by score descending, then id ascending."""
    return sorted(range(len(scores)), key=lambda node: (-scores[node], node))
