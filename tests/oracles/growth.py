"""A draft tree grown in plain Python: nodes as records, one float32 product per child."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


def as_probability(value: float) -> float:
    """A draft probability as the contract reads it: NaN is 0, the rest is clamped to [0, 1]."""
    if math.isnan(value):
        return 0.0
    return min(max(float(value), 0.0), 1.0)


def child_score(probability: float, parent_score: float) -> float:
    """float32(probability x parent path score), both already float32."""
    return float(np.float32(np.float32(as_probability(probability)) * np.float32(parent_score)))


def ranked(scores: Sequence[float]) -> list[int]:
    """Indices by score descending, the lower index first on a tie."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))


@dataclass
class Node:
    """One node; `score` is its path score, undiscounted."""

    token: int
    score: float
    depth: int
    parent: int
    children: list[int] = field(default_factory=list)


@dataclass
class GrownTree:
    """The tree of one request; `frontier` holds the nodes the next layer hangs on."""

    nodes: list[Node]
    frontier: list[int]

    @classmethod
    def with_root(cls, token: int) -> GrownTree:
        return cls([Node(token, 1.0, 0, -1)], [0])

    def grow(self, probabilities: Sequence[float], tokens: Sequence[int]) -> list[int]:
        """Add every candidate, slot after slot; return their ids by score, best first."""
        top_k = len(probabilities) // len(self.frontier)
        added = []
        for column, (probability, token) in enumerate(zip(probabilities, tokens, strict=True)):
            parent = self.frontier[column // top_k]
            node = Node(
                int(token),
                child_score(probability, self.nodes[parent].score),
                self.nodes[parent].depth + 1,
                parent,
            )
            added.append(len(self.nodes))
            self.nodes[parent].children.append(len(self.nodes))
            self.nodes.append(node)
        return [added[index] for index in ranked([self.nodes[node].score for node in added])]

    def chain(self, node: int) -> list[int]:
        """The node and its ancestors, root first."""
        above = self.chain(self.nodes[node].parent) if node else []
        return [*above, node]

    @property
    def parents(self) -> list[int]:
        return [node.parent for node in self.nodes]

    @property
    def scores(self) -> list[float]:
        return [node.score for node in self.nodes]

    def captured_scores(self) -> list[float]:
        """Stored scores of the captured runs: root 1.001, layer 1 as is, deeper x 0.9999 once.

        The factor is a float32 number, as every other operand of a score.
        """
        deeper = np.float32(0.9999)
        stored = [np.float32(1.001)]
        for node in self.nodes[1:]:
            score = np.float32(node.score)
            stored.append(score if node.depth == 1 else np.float32(score * deeper))
        return [float(score) for score in stored]

    def links(self) -> list[tuple[int, int, int]]:
        """(parent, first child, next sibling) of every node, -1 for none."""
        side = [-1] * len(self.nodes)
        for node in self.nodes:
            for left, right in zip(node.children, node.children[1:], strict=False):
                side[left] = right
        return [
            (node.parent, node.children[0] if node.children else -1, side[index])
            for index, node in enumerate(self.nodes)
        ]
