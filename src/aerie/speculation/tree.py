"""DraftTree and Verdict: the two values in which drafting and verifying meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.kernels.pytorch.round_choice import best_of_scores


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
    node_count: Tensor  # [B] i64

    @property
    def n_nodes(self) -> int:
        """Node capacity per request."""
        return self.tokens.shape[1]

    def on_host(self) -> DraftTree:
        """The same tree for a policy that decides on the host; on a CPU nothing is copied."""
        return DraftTree(
            self.tokens.cpu(),
            self.scores.cpu(),
            self.depths.cpu(),
            self.parents.cpu(),
            self.node_count.cpu(),
        )


@dataclass(frozen=True, eq=False)
class Layout:
    """The chosen nodes as flat rows, from K10c."""

    qo_indptr: Tensor  # [B+1] i32
    draft_tokens: Tensor  # [rows] i64
    positions: Tensor  # [rows] i64
    first_child_row: Tensor  # [rows] i64
    next_sibling_row: Tensor  # [rows] i64
    ancestor_bits: Tensor  # [rows, 4] u32
    status: Tensor  # [B] i32


@dataclass(frozen=True, eq=False)
class Verdict:
    """The accepted root path of each request and the one token after it, from K6."""

    accept_index: Tensor  # [B, D+1] i64
    accept_count: Tensor  # [B] i64
    bonus_token: Tensor  # [B] i64
    status: Tensor  # [B] i32, not zero for a request whose logits cannot be used

    def on_host(self) -> Verdict:
        """The same verdict on the host; on a CPU nothing is copied."""
        return Verdict(
            self.accept_index.cpu(),
            self.accept_count.cpu(),
            self.bonus_token.cpu(),
            self.status.cpu(),
        )


def root_trees(roots: Tensor) -> DraftTree:
    """Trees of one node: plain decoding. roots [B] i64."""
    nodes = roots[:, None].clone()
    return DraftTree(
        tokens=nodes,
        scores=torch.ones_like(nodes, dtype=torch.float32),
        depths=torch.zeros_like(nodes),
        parents=torch.full_like(nodes, -1),
        node_count=torch.ones_like(roots),
    )


def best_nodes(tree: DraftTree, n_nodes: int) -> Tensor:
    """The best `n_nodes` of each request by (score, id), never a node without score. [B, N] bool

    Scores never rise along a path, so the choice is closed under ancestors.
    """
    return best_of_scores(tree.scores, n_nodes)
