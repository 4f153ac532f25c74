"""What drafting on fixed buffers works on: the node store, the tree's template, the frontier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.attention.rows import MASK_WORDS
from aerie.speculation.policy import TreeShape
from aerie.speculation.tree import DraftTree

# Arrays of K2's card and what an empty entry holds.
_INTEGER_ARRAYS = {
    "cumu_tokens": 0,
    "cumu_deltas": 0,
    "prev_indexs": -1,
    "next_indexs": -1,
    "side_indexs": -1,
}


@dataclass(frozen=True, eq=False)
class NodeStore:
    """The node arrays of K2, allocated once; slot b of the batch is row b."""

    arrays: dict[str, Tensor]  # [B, N], by the names of K2's card
    sort_scores: Tensor  # [B, M] f32

    @classmethod
    def empty(cls, n_slots: int, capacity: int, verify: int, device: str) -> NodeStore:
        """Trees of one root, token 0."""
        size = (n_slots, capacity)
        arrays = {
            name: torch.full(size, fill, dtype=torch.int64, device=device)
            for name, fill in _INTEGER_ARRAYS.items()
        }
        arrays["cumu_scores"] = torch.zeros(size, device=device)
        arrays["cumu_scores"][:, 0] = 1.0
        sort_scores = torch.zeros((n_slots, verify), device=device)
        sort_scores[:, 0] = 1.0
        return cls(arrays, sort_scores)

    def first(self, n_slots: int) -> NodeStore:
        """Views of the first slots."""
        arrays = {name: array[:n_slots] for name, array in self.arrays.items()}
        return NodeStore(arrays, self.sort_scores[:n_slots])

    def tree(self, n_nodes: int | None = None) -> DraftTree:
        """The first nodes, or all, as a value: views, not copies."""
        arrays = {name: array[:, :n_nodes] for name, array in self.arrays.items()}
        n_slots, capacity = arrays["cumu_tokens"].shape
        device = self.sort_scores.device
        return DraftTree(
            tokens=arrays["cumu_tokens"],
            scores=arrays["cumu_scores"],
            depths=arrays["cumu_deltas"],
            parents=arrays["prev_indexs"],
            node_count=torch.full((n_slots,), capacity, dtype=torch.int64, device=device),
        )


@dataclass(frozen=True, eq=False)
class Template:
    """A tree's shape and what follows from it alone, made once and kept on the device."""

    shape: TreeShape
    widths: tuple[int, ...]  # nodes fed at each level
    levels: tuple[Tensor, Tensor]  # level of each fed node, nodes before each level; i64
    starts: dict[int, Tensor]  # first flat row of each request, by rows per request. [slots+1] i32
    no_bits: Tensor  # [slots * path, 4] i32, for rows that see no tree

    @classmethod
    def of(cls, shape: TreeShape, widths: tuple[int, ...], n_slots: int, device: str) -> Template:
        """A tree of `len(widths) + 1` levels."""
        path = shape.depth + 1
        depths = [depth for depth, width in enumerate(widths) for _ in range(width)]
        before = [sum(widths[:depth]) for depth in range(len(widths) + 1)]
        levels = [torch.tensor(part, dtype=torch.int64, device=device) for part in (depths, before)]
        steps = torch.arange(n_slots + 1, dtype=torch.int32, device=device)
        return cls(
            shape,
            widths,
            (levels[0], levels[1]),
            {n: steps * n for n in {*widths, path}},
            torch.zeros((n_slots * path, MASK_WORDS), dtype=torch.int32, device=device),
        )

    @classmethod
    def full(cls, shape: TreeShape, n_slots: int, device: str) -> Template:
        """The widest tree of a shape."""
        return cls.of(shape, (shape.top_k,) * (shape.depth - 1), n_slots, device)

    @property
    def fed(self) -> int:
        """Nodes fed to the draft, per request."""
        return sum(self.widths)

    @property
    def n_nodes(self) -> int:
        """Nodes a draft stores per request: the root, and the children of it and of all fed."""
        return 1 + self.shape.top_k * (1 + self.fed)


@dataclass(frozen=True, eq=False)
class Accepted:
    """What verifying hands to drafting: each request's kept rows, their features and next tokens.

    Row i of request b stands at position `seq_len[b] - count[b] + i`. A request that failed or
    ended has count 0.
    """

    tokens: Tensor  # [B, n] i64, the token after each row
    taps: Tensor  # [B, n, captures, hidden]
    count: Tensor  # [B] i64


@dataclass(frozen=True, eq=False)
class Place:
    """Where the requests of a bucket keep their KV."""

    table: Tensor  # [rows, positions] i32, the request-to-slot table
    table_row: Tensor  # [B] i64
    seq_len: Tensor  # [B] i64, committed tokens, root excluded
    longest: int  # bound on seq_len and everything a draft feeds


@dataclass(frozen=True, eq=False)
class Grown:
    """The best children of a layer: the next frontier's candidates."""

    ids: Tensor  # [B, K] i64
    scores: Tensor  # [B, K] f32
    tokens: Tensor  # [B, K] i64, -1 where a request was refused
    hidden: Tensor  # [B, K, hidden]
    mask: Tensor  # [B, K, F] bool
    gains: Tensor | None = None  # [K+1] f32, K3's G of the layer, where somebody learns from it


@dataclass(eq=False)
class Frontier:
    """The nodes that are being expanded."""

    ids: Tensor  # [B, W] i64
    scores: Tensor  # [B, W] f32
    tokens: Tensor  # [B, W] i64
    hidden: Tensor  # [B*W, hidden]
    mask: Tensor  # [B, W, F] bool, K2's own form of what `bits` packs
    bits: Tensor  # [B, W, 4] i32

    @classmethod
    def root(cls, hidden: Tensor, shape: TreeShape) -> Frontier:
        """One node per request."""
        batch, device = hidden.shape[0], hidden.device
        ids = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        return cls(
            ids=ids,
            scores=torch.ones((batch, 1), device=device),
            tokens=ids,
            hidden=hidden,
            mask=torch.zeros(
                (batch, 1, shape.depth * shape.top_k), dtype=torch.bool, device=device
            ),
            bits=torch.zeros((batch, 1, MASK_WORDS), dtype=torch.int32, device=device),
        )

    def next(self, grown: Grown, width: int, bits: Tensor) -> Frontier:
        """The best children become the frontier."""
        hidden = grown.hidden[:, :width]
        return Frontier(
            ids=grown.ids[:, :width],
            scores=grown.scores[:, :width],
            tokens=grown.tokens[:, :width].clamp_min(0),
            hidden=hidden.reshape(-1, hidden.shape[-1]),
            mask=grown.mask[:, :width],
            bits=bits,
        )
