"""Trees of one request that are chains, and verdicts on them; shared, not a test itself."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.assemble.core import build_kernels
from aerie.speculation.policy import Lesson, Policy
from aerie.speculation.tree import DraftTree

KERNELS = build_kernels("numpy", "cpu")


def chain(scores: list[float], deepest: int = 100) -> DraftTree:
    """A chain with these path scores, the root's first."""
    n = len(scores)
    return DraftTree(
        tokens=torch.arange(n)[None],
        scores=torch.tensor([scores]),
        depths=torch.arange(n)[None].clamp(max=deepest),
        parents=torch.arange(-1, n - 1)[None],
        deepest=deepest,
    )


def selected(policy: Policy, tree: DraftTree) -> Tensor:
    """The nodes that a policy verifies of a tree. [B, N] bool"""
    chosen = torch.zeros(tree.scores.shape, dtype=torch.bool)
    count = torch.zeros(tree.scores.shape[0], dtype=torch.int32)
    policy.select(KERNELS, tree, chosen, count)
    assert count.tolist() == chosen.sum(dim=1).tolist()
    return chosen


def accepting(n_accepted: int, tree: DraftTree, n_rows: int) -> Lesson:
    """So many rows of a chain were verified, and the first so many behind the root accepted."""
    path = [row if row <= n_accepted else -1 for row in range(n_rows)]
    return Lesson(
        scores=tree.scores[:, :n_rows],
        depths=tree.depths[:, :n_rows],
        n_rows=[n_rows],
        path=torch.tensor([path]),
    )
