"""N-gram paths: what followed the last time the text ended like this, merged as extra nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.speculation.policy import Growth
from aerie.speculation.proposer import Features, Followed, Proposer, Roots
from aerie.speculation.tree import DraftTree

# A copied token is worth this much of its parent in the order of nodes. A guess, not a
# probability; a planner replaces it by what it measures.
CONFIDENCE = 0.6
SEARCHED = 4096  # tokens of the text that are looked through, newest first


def find_continuation(text: Sequence[int], longest: int, length: int) -> list[int]:
    """Tokens that followed the latest earlier occurrence of the longest known suffix."""
    recent = list(text[-SEARCHED:])
    for size in range(min(longest, len(recent) - 1), 0, -1):
        suffix = recent[-size:]
        for start in range(len(recent) - size - 1, -1, -1):
            if recent[start : start + size] == suffix:
                return recent[start + size : start + size + length]
    return []


@dataclass(frozen=True, eq=False)
class NgramProposer:
    """Adds paths copied from each request's own text to the trees of another proposer."""

    base: Proposer
    longest: int  # suffix
    depth: int  # tokens copied

    @property
    def taps(self) -> tuple[int, ...]:
        """What the base needs."""
        return self.base.taps

    @property
    def scratch(self) -> int:
        """What the base needs."""
        return self.base.scratch

    def remember(self, pending: list[Features]) -> list[Features]:
        """What the base may still read."""
        return self.base.remember(pending)

    def extend(self, drafting: list[Followed], waiting: list[Followed]) -> Roots | None:
        """The base follows the target; copying needs no features."""
        return self.base.extend(drafting, waiting)

    def grow(
        self, drafting: list[Followed], roots: Roots | None, growth: Growth | None
    ) -> DraftTree:
        """The base's trees with the copied paths merged in."""
        tree = self.base.grow(drafting, roots, growth)
        paths = [find_continuation(r.text, self.longest, self.depth) for r in drafting]
        return merge_paths(tree, paths)


def merge_paths(tree: DraftTree, paths: Sequence[Sequence[int]]) -> DraftTree:
    """Add one path per request below its root; tokens that are already there are walked over."""
    room = max((len(path) for path in paths), default=0)
    if not room:
        return tree
    merged = _Arrays.with_room(tree, room)
    for request, path in enumerate(paths):
        node = 0
        for token in path:
            child = merged.child(request, node, token)
            node = merged.add(request, node, token) if child is None else child
    return merged.tree()


@dataclass(eq=False)
class _Arrays:
    tokens: Tensor
    scores: Tensor
    depths: Tensor
    parents: Tensor
    counts: list[int]

    @classmethod
    def with_room(cls, tree: DraftTree, room: int) -> _Arrays:
        def wider(array: Tensor, fill: float) -> Tensor:
            return torch.nn.functional.pad(array, (0, room), value=fill)

        return cls(
            wider(tree.tokens, 0),
            wider(tree.scores, 0),
            wider(tree.depths, 0),
            wider(tree.parents, -1),
            tree.node_count.tolist(),
        )

    def child(self, request: int, node: int, token: int) -> int | None:
        """The node below `node` that carries the token. A proposed one of score 0 is revived."""
        used = self.counts[request]
        here = (self.parents[request, :used] == node) & (self.tokens[request, :used] == token)
        found = here.nonzero()[:, 0].tolist()
        found = [index for index in found if index > 0]
        if not found:
            return None
        worth = CONFIDENCE * float(self.scores[request, node])
        if float(self.scores[request, found[0]]) == 0.0:
            self.scores[request, found[0]] = worth
        return int(found[0])

    def add(self, request: int, node: int, token: int) -> int:
        """A new last node: its parent's id is smaller and its score no larger."""
        index = self.counts[request]
        self.tokens[request, index] = token
        self.scores[request, index] = CONFIDENCE * self.scores[request, node]
        self.depths[request, index] = self.depths[request, node] + 1
        self.parents[request, index] = node
        self.counts[request] += 1
        return index

    def tree(self) -> DraftTree:
        """The merged trees as a value."""
        counts = torch.tensor(self.counts, dtype=torch.int64, device=self.tokens.device)
        return DraftTree(self.tokens, self.scores, self.depths, self.parents, counts)
