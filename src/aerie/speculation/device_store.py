"""What drafting on fixed buffers works on: the node store, the tree's template, the frontier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.attention.rows import BITS_PER_WORD, MASK_WORDS
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

    def plant(self, roots: Tensor) -> None:
        """New roots [B] i64, all other nodes without score; depths and links stay as they are."""
        self.arrays["cumu_tokens"][:, 0] = roots
        # A layer that K2 refuses must not leave nodes of the last round in the running.
        self.arrays["cumu_scores"][:, 1:].zero_()

    def tree(self) -> DraftTree:
        """The nodes as a value: views, not copies."""
        arrays = self.arrays
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
    own_bits: tuple[Tensor, ...]  # [W, 4] i32 for every level, the bit of each fed node
    levels: Tensor  # [fed] i64, level of each fed node

    @classmethod
    def of(cls, shape: TreeShape, widths: tuple[int, ...], device: str) -> Template:
        """A tree of `len(widths) + 1` levels."""
        node = torch.arange(sum(widths))
        word = torch.arange(MASK_WORDS)
        own = (1 << (node % BITS_PER_WORD))[:, None] * (node[:, None] // BITS_PER_WORD == word)
        # Bit 31 is the sign of an int32: the same pattern, two's complement.
        signed = torch.where(own >= 1 << 31, own - (1 << 32), own).int().to(device)
        levels = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths).long())
        return cls(shape, widths, tuple(signed.split(widths)), levels.to(device))

    @classmethod
    def full(cls, shape: TreeShape, device: str) -> Template:
        """The widest tree of a shape."""
        return cls.of(shape, (shape.top_k,) * (shape.depth - 1), device)

    @property
    def fed(self) -> int:
        """Nodes fed to the draft, per request."""
        return sum(self.widths)


@dataclass(eq=False)
class Frontier:
    """The nodes that are being expanded."""

    ids: Tensor  # [B, W] i64
    scores: Tensor  # [B, W] f32
    tokens: Tensor  # [B, W] i64
    hidden: Tensor  # [B*W, hidden]
    mask: Tensor  # [B, W, F] bool, K2's own form of what `bits` packs
    bits: Tensor  # [B, W, 4] i32
    fed: int

    @classmethod
    def root(cls, hidden: Tensor, shape: TreeShape) -> Frontier:
        batch, device = hidden.shape[0], hidden.device
        ids = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        columns = shape.depth * shape.top_k
        return cls(
            ids=ids,
            scores=torch.ones((batch, 1), device=device),
            tokens=ids,
            hidden=hidden,
            mask=torch.zeros((batch, 1, columns), dtype=torch.bool, device=device),
            bits=torch.zeros((batch, 1, MASK_WORDS), dtype=torch.int32, device=device),
            fed=0,
        )

    def next(self, layer: Any, state: Any, own_bits: Tensor) -> Frontier:
        """The best children: each sees what its parent saw, and itself."""
        width = own_bits.shape[0]
        hidden = layer.output_hidden[:, :width]
        parents = layer.parent_indices_in_layer[:, :width, None].expand(-1, -1, MASK_WORDS)
        return Frontier(
            ids=layer.cache_topk_indices[:, :width],
            scores=state.output_scores[:, :width],
            tokens=state.output_tokens[:, :width].clamp_min(0),
            hidden=hidden.reshape(-1, hidden.shape[-1]),
            mask=state.output_tree_mask[:, :width],
            bits=self.bits.gather(1, parents.clamp_min(0)) | own_bits,
            fed=self.fed + width,
        )
