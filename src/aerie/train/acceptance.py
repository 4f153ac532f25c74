"""Acceptance: the walk over drafts, what counts, and how sure the mean is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_SAMPLES = 2000  # of prompts, drawn with replacement

Ranks = NDArray[np.int64]
Path = tuple[int, ...]


@dataclass(frozen=True)
class Draft:
    """A static draft: the paths of ranks it holds, every prefix included, and its depth."""

    name: str
    paths: frozenset[Path]
    depth: int


def chain(k: int) -> Draft:
    """The best token at each of k levels."""
    return Draft(f"chain{k}", frozenset((0,) * n for n in range(1, k + 1)), k)


def tree(name: str, leaves: Iterable[Path]) -> Draft:
    """The smallest tree that holds these paths."""
    paths = {leaf[:n] for leaf in leaves for n in range(1, len(leaf) + 1)}
    return Draft(name, frozenset(paths), max(map(len, paths)))


# Eleven nodes, three levels: the best three tokens first, then mostly the best of each.
TREE3 = tree("tree3", [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2, 0)])
DRAFTS = (chain(3), chain(5), chain(7), TREE3)


@dataclass(frozen=True)
class Walked:
    """Rounds and accepted draft tokens of one continuation."""

    drafts: int
    accepted: int


def walk(ranks: Ranks, draft: Draft) -> Walked:
    """Decode a continuation with this draft, counting whole rounds only.

    `ranks` [tokens, steps]: row r belongs to the round whose root is token r of the continuation;
    entry j is the rank, among the head's guesses at level j, of the token that really follows
    (r + 1 + j). Whatever the draft holds beside the true path never changes what is accepted, so
    the ranks along the true path are enough. Rounds that would run over the end are not counted.
    """
    n_tokens, n_steps = ranks.shape
    assert n_steps >= draft.depth, f"{n_steps} steps for a draft {draft.depth} deep"
    rounds = accepted = root = 0
    while root + draft.depth < n_tokens:
        length = 0
        while length < draft.depth and tuple(ranks[root, : length + 1]) in draft.paths:
            length += 1
        rounds += 1
        accepted += length
        root += length + 1
    return Walked(rounds, accepted)


def mean_length(walks: Sequence[Walked]) -> float:
    """Mean acceptance length, bonus token included: 1 + accepted / drafts."""
    drafts = sum(w.drafts for w in walks)
    return 1.0 + sum(w.accepted for w in walks) / max(drafts, 1)


def bootstrap_interval(walks: Sequence[Walked]) -> tuple[float, float]:
    """95 % interval of the mean acceptance length; prompts are drawn with replacement."""
    return middle(resampled(walks))


def ratio_interval(walks: Sequence[Walked], base: Sequence[Walked]) -> tuple[float, float]:
    """95 % interval of the ratio of two means; both sets of prompts are drawn anew."""
    return middle(resampled(walks) / resampled(base, seed=1))


def resampled(
    walks: Sequence[Walked], n_samples: int = N_SAMPLES, seed: int = 0
) -> NDArray[np.float64]:
    """Mean acceptance lengths of so many samples; the same prompts for the same seed."""
    counts = np.array([(w.drafts, w.accepted) for w in walks], dtype=np.float64)
    random = np.random.default_rng(seed)
    chosen = random.integers(len(walks), size=(n_samples, len(walks)))
    sums = counts[chosen].sum(axis=1)
    means: NDArray[np.float64] = 1.0 + sums[:, 1] / np.maximum(sums[:, 0], 1.0)
    return means


def middle(values: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of samples."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
