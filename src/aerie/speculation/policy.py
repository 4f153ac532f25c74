"""What a policy is: how wide and deep to draft, which nodes to verify, what to learn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aerie.speculation.tree import DraftTree, Verdict, best_nodes

Gains = Callable[[], NDArray[np.float32]]  # K3's G of the layer just stored, computed when asked


@dataclass(frozen=True)
class TreeShape:
    """Bounds of a tree: every frontier node gets `top_k` children, at most as many go on."""

    top_k: int
    depth: int
    verify: int

    def __str__(self) -> str:
        """In the words of a page or a log."""
        if self.verify == 1:
            return "plain decoding"
        kind = "a chain" if self.top_k == 1 else f"a tree of top-k {self.top_k},"
        return f"{kind} of depth {self.depth}, {self.verify} rows verified,"

    @property
    def capacity(self) -> int:
        """Nodes per request, the root and every candidate included."""
        return 1 + self.top_k + (self.depth - 1) * self.top_k * self.top_k

    @property
    def fed(self) -> int:
        """Nodes fed to the draft in one round, per request."""
        return (self.depth - 1) * self.top_k


@dataclass(frozen=True)
class Situation:
    """What a round starts from."""

    batch: int  # requests that decode; 0: nobody does, or nobody wants drafts
    context: float  # mean tokens with KV in the target


class Growth(Protocol):
    """One round's drafting: asked after every layer how many of its best nodes to expand."""

    def next_width(self, depth: int, gains: Gains) -> int:
        """Nodes of layer `depth` to feed to the draft, at most top_k; 0 ends the tree."""
        ...


class Policy(Protocol):
    """Decides every round. Never decides a token: any policy gives the same text."""

    @property
    def shape(self) -> TreeShape:
        """The largest tree it ever asks for."""
        ...

    @property
    def reason(self) -> str:
        """Why the last round drafted, or did not, in one sentence for people."""
        ...

    def open(self, situation: Situation) -> Growth | None:
        """How this round drafts; None: it does not, and the draft may do nothing at all."""
        ...

    def select(self, tree: DraftTree) -> Tensor:
        """Nodes to verify, [B, N] bool: the roots and a set that is closed under ancestors."""
        ...

    def learn(self, tree: DraftTree, chosen: Tensor, verdict: Verdict) -> None:
        """What became of the chosen nodes."""
        ...


@dataclass(frozen=True)
class FixedTree:
    """The same shape every round: chains, and EAGLE-2's dynamic trees."""

    shape: TreeShape

    @property
    def reason(self) -> str:
        """It was asked for."""
        return f"{self.shape} in every round"

    def open(self, situation: Situation) -> Growth | None:
        """Always where somebody decodes; a tree of one node needs no draft."""
        return self if self.shape.verify > 1 and situation.batch else None

    def next_width(self, depth: int, gains: Gains) -> int:
        """All the best children, down to the last level."""
        return self.shape.top_k if depth < self.shape.depth else 0

    def select(self, tree: DraftTree) -> Tensor:
        """The best nodes of each request by path score."""
        return best_nodes(tree, self.shape.verify)

    def learn(self, tree: DraftTree, chosen: Tensor, verdict: Verdict) -> None:
        """Nothing to learn."""
