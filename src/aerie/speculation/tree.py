"""DraftTree: the value in which drafting and choosing meet."""

from __future__ import annotations

from dataclasses import dataclass

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
