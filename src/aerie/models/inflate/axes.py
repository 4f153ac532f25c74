"""Axes: which entry of a small model each entry of a large tensor's axis comes from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.models.inflate.geometry import BlockSizes

DEAD = -1  # comes from nowhere and may hold anything, for nothing live reads it
SILENT = -2  # comes from nowhere and is multiplied with something that is not zero: must be zero


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a large tensor; an entry of the small one may appear several times."""

    source: Tensor  # [large] i64, index in the small axis, DEAD or SILENT

    @property
    def size(self) -> int:
        """Entries of the large axis."""
        return self.source.shape[0]

    @property
    def live(self) -> Tensor:
        """Indices that come from the small axis."""
        return (self.source >= 0).nonzero().flatten()

    @property
    def dead(self) -> Tensor:
        """Indices that may hold anything."""
        return (self.source == DEAD).nonzero().flatten()

    @property
    def silent(self) -> Tensor:
        """Indices that must be zero."""
        return (self.source == SILENT).nonzero().flatten()


def leading(n_small: int, n_large: int) -> Axis:
    """The small axis first, in order: whatever compares indices compares them as before."""
    source = torch.full((n_large,), DEAD)
    source[:n_small] = torch.arange(n_small)
    return Axis(source)


def side_by_side(axis: Axis, n_small: int, n_copies: int) -> Axis:
    """Several inputs of one width joined: captured states, or embedding beside hidden state."""
    parts = [
        torch.where(axis.source >= 0, axis.source + copy * n_small, axis.source)
        for copy in range(n_copies)
    ]
    return Axis(torch.cat(parts))


def head_dimensions(small: int, large: int) -> Tensor:
    """Small dimension of each dimension of a large head: [large] i64, DEAD where there is none.

    Pair i turns by theta^(-2 i / small). Pair s * i of a head s times as large turns by
    theta^(-2 s i / large), which is the same angle, whatever rule is applied to it afterwards.
    """
    stretch = large // small
    source = torch.full((large,), DEAD)
    pairs = torch.arange(small // 2)
    source[stretch * pairs] = pairs
    source[stretch * pairs + large // 2] = pairs + small // 2
    return source


@dataclass(frozen=True)
class HeadPlaces:
    """Small head of each large one, or DEAD."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]


def kv_copies(small: BlockSizes, large: BlockSizes) -> int:
    """How many large KV heads a small one is copied into, so that each serves its queries."""
    group, large_group = (b.n_heads // b.n_kv_heads for b in (small, large))
    return -(-group // large_group)


def place_heads(small: BlockSizes, large: BlockSizes) -> HeadPlaces:
    """Every small query head reads a copy of its own KV head; the rest is dead."""
    group, large_group = (b.n_heads // b.n_kv_heads for b in (small, large))
    queries, keys = [DEAD] * large.n_heads, [DEAD] * large.n_kv_heads
    n_copies = kv_copies(small, large)
    for query in range(small.n_heads):
        key, own = divmod(query, group)
        copy, place = divmod(own, large_group)
        large_key = key * n_copies + copy
        keys[large_key] = key
        queries[large_key * large_group + place] = query
    return HeadPlaces(tuple(queries), tuple(keys))


def query_axis(places: HeadPlaces, dimensions: Tensor, head_dim: int) -> Axis:
    """Rows of q_proj and columns of o_proj.

    Dimensions that a live head does not use are silent: the keys there hold anything.
    """
    return _head_rows(places.queries, torch.where(dimensions < 0, SILENT, dimensions), head_dim)


def key_axis(places: HeadPlaces, dimensions: Tensor, head_dim: int) -> Axis:
    """Rows of k_proj and v_proj."""
    return _head_rows(places.keys, dimensions, head_dim)


def _head_rows(heads: tuple[int, ...], dimensions: Tensor, head_dim: int) -> Axis:
    rows = []
    for head in heads:
        live = torch.where(dimensions >= 0, dimensions + head * head_dim, dimensions)
        rows.append(live if head >= 0 else torch.full_like(dimensions, DEAD))
    return Axis(torch.cat(rows))
