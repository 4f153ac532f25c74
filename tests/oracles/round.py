"""A round's choices, hand-over and text paths by brute force, strings and dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Path = tuple[int, ...]


def acceptance(
    scores: Sequence[float], parents: Sequence[int], knots: Sequence[Sequence[float]]
) -> list[float]:
    """Probability that the whole path to each node is accepted; `knots` by depth."""
    weights: list[float] = []
    depths: list[int] = []
    for score, parent in zip(scores, parents, strict=True):
        if parent < 0:
            weights.append(score)
            depths.append(0)
            continue
        depths.append(depths[parent] + 1)
        row = knots[min(depths[-1], len(knots)) - 1]
        # Knots lie evenly in the square root of the score.
        added = np.interp(np.sqrt(score), np.linspace(0, 1, len(row)), row)
        own = float(np.clip(score + added, 0, 1)) if score > 0 else 0.0
        weights.append(min(own, weights[parent]))
    return weights


def closed_sets(parents: Sequence[int], most: int) -> list[frozenset[int]]:
    """Every ancestor-closed set with the root of at most so many nodes."""
    found = []
    for size in range(min(most, len(parents))):
        for chosen in itertools.combinations(range(1, len(parents)), size):
            kept = {0, *chosen}
            if all(parents[node] in kept for node in chosen):
                found.append(frozenset(kept))
    return found


@dataclass(frozen=True)
class Offer:
    """Row counts that may be verified, what each costs, and what time is worth."""

    seconds: dict[int, float]
    rate: float
    verify: int


def best_value(weights: list[list[float]], parents: list[list[int]], offer: Offer) -> float:
    """The most that any closed forest is worth in a size on offer that holds it."""
    forests = itertools.product(*(closed_sets(links, offer.verify) for links in parents))
    return max(
        sum(weights[b][node] for b, kept in enumerate(forest) for node in kept)
        - offer.rate * seconds
        for forest in forests
        for size, seconds in offer.seconds.items()
        if sum(map(len, forest)) <= size
    )


def continuation(
    text: Sequence[int], longest: int, length: int, searched: int
) -> tuple[int, list[int]]:
    """The suffix found and what followed it, by searching a string from its end."""
    recent = "".join(map(chr, text[max(0, len(text) - searched) :]))
    for size in range(min(longest, len(recent) - 1), 0, -1):
        at = recent.rfind(recent[-size:], 0, len(recent) - 1)
        if at >= 0:
            return size, [ord(token) for token in recent[at + size : at + size + length]]
    return 0, []


def by_path(
    tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float]
) -> dict[Path, float]:
    """The scores of a tree by the tokens that lead to each node; of twins the first."""
    paths: list[Path] = []
    tree: dict[Path, float] = {}
    for token, parent, score in zip(tokens, parents, scores, strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else ())
        tree.setdefault(paths[-1], score)
    return tree


def merged(tree: dict[Path, float], path: Sequence[int], confidence: float) -> dict[Path, float]:
    """The tree with a path below its root; nodes without a score get one."""
    made = dict(tree)
    above, steps = made[()], 0
    for end in range(1, len(path) + 1):
        key = tuple(path[:end])
        if made.get(key, 0.0) > 0:
            above, steps = made[key], 0
            continue
        steps += 1
        power = 1.0
        for _ in range(steps):
            power *= confidence
        made[key] = float(np.float32(above * power))
    return made


@dataclass(frozen=True)
class Seat:
    """One seat before and after a verdict, in words of Python."""

    words: tuple[int, int, int, int]
    is_live: bool
    emitted: list[int]
    is_finished: bool
    length: int
    root: int

    @property
    def status(self) -> int:
        """The first word that refuses."""
        return next((word for word in self.words if word), 0)

    def after(self) -> tuple[bool, int, int, int]:
        """Whether it lives, length, root and rows to take in once the verdict is handed over."""
        if self.status or not self.is_live:
            return self.is_live, self.length, self.root, 0
        n_kept = len(self.emitted)
        root = self.emitted[-1] if self.emitted else self.root
        return not self.is_finished, self.length + n_kept, root, n_kept
