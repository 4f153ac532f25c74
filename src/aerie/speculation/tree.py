"""DraftTree: the value in which drafting and choosing meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Candidate nodes of a batch. Node 0 is the root: the last committed token, KV not yet stored.

    A parent's id is smaller than its child's and its score at least as large, so the nodes in
    order of (score descending, id ascending) form a tree at every length.
    """

    tokens: Tensor  # [B, N] i64
    scores: Tensor  # [B, N] f32, path scores; 0 for a node that was never proposed
    depths: Tensor  # [B, N] i64
    parents: Tensor  # [B, N] i64, -1 for the root
    deepest: int  # bound on the depths

    @property
    def n_nodes(self) -> int:
        """Node capacity per request."""
        return self.tokens.shape[1]


def best_of_scores(scores: Tensor, n_nodes: int) -> Tensor:
    """The best `n_nodes` of each request by (score, id), never a node without score. [B, N] bool

    Scores never rise along a path, so the choice is closed under ancestors.
    """
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(1, order[:, :n_nodes], True)
    return chosen & (scores > 0)
