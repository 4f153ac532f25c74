"""Node stores of given shapes for the round's cases: scores that fall, siblings that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.kernels.cases.table import Array, Rng
from aerie.kernels.cases.trees import VOCAB, tree_parents

# Share of its parent's score that a child has; eighths make equal scores common.
_SHARES: dict[str, Callable[[Rng, int], Array]] = {
    "usual": lambda rng, size: rng.random(size) ** 0.5,
    "ties": lambda rng, size: rng.integers(1, 9, size) / 8,
    "some_zero": lambda rng, size: rng.integers(0, 9, size) / 8,
    "zero": lambda rng, size: np.zeros(size),
    "ones": lambda rng, size: np.ones(size),
    "tiny": lambda rng, size: rng.random(size) * 1e-12,
}


@dataclass(frozen=True)
class Forest:
    """One tree per request; entries behind a tree are without a score."""

    tokens: Array  # [B, N]
    scores: Array  # [B, N]
    depths: Array  # [B, N]
    parents: Array  # [B, N]

    @property
    def deepest(self) -> int:
        """Depth of the deepest node, at least 1."""
        return max(int(self.depths.max(initial=1)), 1)


def plant(
    rng: Rng,
    shapes: Sequence[str],
    kind: str = "usual",
    spare: int = 2,
    size: int | None = None,
    vocab: int = VOCAB,
) -> Forest:
    """Trees of shapes as `tree_parents` names them, in stores of the largest and `spare` nodes."""
    trees = [tree_parents(rng, shape) for shape in shapes]
    n_nodes = size or max(map(len, trees), default=1) + spare
    batch = len(trees)
    tokens, depths = np.zeros((batch, n_nodes), np.int64), np.zeros((batch, n_nodes), np.int64)
    parents = np.full((batch, n_nodes), -1, np.int64)
    scores = np.zeros((batch, n_nodes), np.float32)
    for b, tree in enumerate(trees):
        share = _SHARES[kind](rng, len(tree)).astype(np.float32)
        rank = [0] * len(tree)
        scores[b, 0], tokens[b, 0] = 1, rng.integers(vocab)
        for node, parent in enumerate(tree):
            if parent >= 0:
                scores[b, node] = scores[b, parent] * share[node]
                depths[b, node] = depths[b, parent] + 1
                parents[b, node] = parent
                # Consecutive tokens below one parent: siblings differ.
                tokens[b, node] = (7 * parent + rank[parent]) % vocab
                rank[parent] += 1
    return Forest(tokens, scores, depths, parents)


def left_over(rng: Rng, forest: Forest) -> None:
    """Behind the trees, what an earlier round left: nodes that hang together but have no score."""
    for b, row in enumerate(forest.parents):
        for node in range(1, len(row)):
            if row[node] < 0:
                parent = int(rng.integers(node))
                forest.parents[b, node] = parent
                forest.depths[b, node] = forest.depths[b, parent] + 1
                forest.tokens[b, node] = VOCAB + node
