"""Attention work at one operating point: a pool of pages in any order, and rows to attend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aerie.attention.rows import Bounds, Rows, causal_rows, tree_rows

PAGE = 16
# A captured run holds the layers of a whole forward, as an engine runs them: together they are many
# times any cache, so a layer's keys are never where the last one left them.
N_LAYERS = 32


@dataclass(frozen=True)
class Heads:
    """A layer's attention geometry."""

    n_heads: int
    n_kv_heads: int
    head_dim: int


PRODUCTION = Heads(32, 8, 128)  # Llama-3.1-8B


@dataclass(frozen=True)
class Point:
    """One operating point; `rows` and `columns` are of each request, rows included."""

    rows: int
    columns: int
    batch: int
    heads: Heads = PRODUCTION
    dtype: torch.dtype = torch.bfloat16
    is_tree: bool = True

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values one layer must read once."""
        per_column = 2 * self.heads.n_kv_heads * self.heads.head_dim * self.dtype.itemsize
        return self.batch * self.columns * per_column

    @property
    def operations(self) -> int:
        """Multiplications and additions of one layer's two products."""
        seen = self.columns if self.is_tree else self.columns - (self.rows - 1) / 2
        return int(self.batch * 4 * self.rows * seen * self.heads.n_heads * self.heads.head_dim)


@dataclass(frozen=True, eq=False)
class Work:
    """Everything a run of attention over some layers needs."""

    rows: Rows
    queries: Tensor  # [rows, heads, head_dim]
    keys: Tensor  # [layers, slots, kv_heads, head_dim]
    values: Tensor


def random_storage(elements: int, dtype: torch.dtype, device: str) -> Tensor:
    """Keys and values for every point of a run are cut from one random buffer: [2, elements]."""
    return torch.randn((2, elements), dtype=dtype, device=device)


def storage_elements(points: list[Point], n_layers: int) -> int:
    """What the largest of the points needs of each half of the storage."""
    return n_layers * max(_layer_elements(point) for point in points)


def make_work(point: Point, storage: Tensor) -> Work:
    """Rows over scattered pages; trees branch at random, fixed by the point's size.

    As many layers as the storage holds, at most those of a whole forward.
    """
    heads, device = point.heads, storage.device
    generator = torch.Generator().manual_seed(point.rows + point.columns)
    rows = tree(point, generator) if point.is_tree else chunk(point, generator)
    n_layers = min(N_LAYERS, storage.shape[1] // _layer_elements(point))
    keys, values = (
        half[: n_layers * _layer_elements(point)].view(
            n_layers, -1, heads.n_kv_heads, heads.head_dim
        )
        for half in storage
    )
    queries = torch.randn(
        (rows.n_rows, heads.n_heads, heads.head_dim), generator=generator, dtype=torch.float32
    )
    return Work(on(rows, device), queries.to(device, point.dtype), keys, values)


def tree(point: Point, generator: torch.Generator) -> Rows:
    """One random tree a request behind a prefix."""
    parents = [-1] + [
        int(torch.randint(max(i - 8, 0), i, (1,), generator=generator))
        for i in range(1, point.rows)
    ]
    masks: list[int] = []
    depths: list[int] = []
    for row, parent in enumerate(parents):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << row)
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    words = torch.tensor([[_signed(mask >> 32 * w) for w in range(4)] for mask in masks])
    positions = point.columns - point.rows + torch.tensor(depths)
    return tree_rows(
        torch.zeros(point.batch * point.rows, dtype=torch.int64),
        positions.repeat(point.batch),
        words.int().repeat(point.batch, 1),
        *_lists(point, generator),
        Bounds(point.rows, point.columns, point.rows),
    )


def chunk(point: Point, generator: torch.Generator) -> Rows:
    """The last rows of each request's prompt, causal."""
    return causal_rows(
        torch.zeros(point.batch * point.rows, dtype=torch.int64),
        *_lists(point, generator),
        Bounds(point.rows, point.columns),
    )


def on(rows: Rows, device: torch.device) -> Rows:
    """The same rows on another device."""
    moved: dict[str, Any] = {
        name: value.to(device) for name, value in vars(rows).items() if isinstance(value, Tensor)
    }
    return replace(rows, **moved)


def _lists(point: Point, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(qo_indptr, kv_indptr, kv_indices) with every request's pages scattered over the pool."""
    n_pages = -(-point.columns // PAGE)
    pages = torch.randperm(point.batch * n_pages, generator=generator).view(point.batch, n_pages)
    slots = (1 + pages)[..., None] * PAGE + torch.arange(PAGE)
    indices = slots.flatten(1)[:, : point.columns].flatten().int()
    requests = torch.arange(point.batch + 1, dtype=torch.int32)
    return requests * point.rows, requests * point.columns, indices


def _layer_elements(point: Point) -> int:
    """Keys of one layer, the inert page's included."""
    n_slots = (point.batch * -(-point.columns // PAGE) + 1) * PAGE
    return n_slots * point.heads.n_kv_heads * point.heads.head_dim


def _signed(word: int) -> int:
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low
