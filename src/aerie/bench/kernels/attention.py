"""Times tree attention through its backend, CUDA graphs only, beside the time its bytes take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from aerie.attention.contract import LayerAttention, Reach
from aerie.attention.rows import Bounds, Rows, causal_rows, tree_rows
from aerie.bench.turns import Spread, device_seconds
from aerie.kernels.cases.trees import lay_out

if TYPE_CHECKING:
    from aerie.attention.triton import Tile, TritonAttention

SAMPLES = 9
# Points of the published table: rows of a tree, columns of its request, requests.
ROWS = (1, 16, 64, 128)
COLUMNS = (1024, 8192, 16384, 32768)
BATCHES = (1, 4)
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
    seed = point.rows + point.columns
    generator = torch.Generator().manual_seed(seed)
    tokens, lists = torch.zeros(point.batch * point.rows).long(), _lists(point, generator)
    if not point.is_tree:
        rows = causal_rows(tokens, *lists, Bounds(point.rows, point.columns))
    else:  # one tree for all requests, behind a prefix
        bounds = Bounds(point.rows, point.columns, point.rows)
        drawn = lay_out(np.random.default_rng(seed), [f"random{point.rows}"])
        words = torch.from_numpy(drawn.bits.astype(np.int32)).repeat(point.batch, 1)
        positions = point.columns - point.rows + torch.from_numpy(drawn.depths)
        rows = tree_rows(tokens, positions.repeat(point.batch), words, *lists, bounds)
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


def tree_points() -> list[Point]:
    """The table's points."""
    return [Point(r, c, b) for b in BATCHES for c in COLUMNS for r in ROWS]


def measure(
    points: list[Point], backend: TritonAttention, storage: Tensor, bandwidth: float
) -> list[dict[str, Any]]:
    """One layer at every point, with the backend's own choice of tile; JSON values.

    The floor is the time its keys and values take at the speed of a copy, `bandwidth` bytes a
    second.
    """
    found = []
    for point in points:
        work, missed = make_work(point, storage), backend.misses.total()
        spread = Spread.of(seconds_per_layer(work, backend))
        floor_us = 1e6 * point.kv_bytes / bandwidth
        prepared = backend(work.rows, [Reach()])
        prepared(work.queries, work.keys[0], work.values[0], LayerAttention(1.0, Reach()))
        found.append(
            {
                "rows": point.rows,
                "columns": point.columns,
                "batch": point.batch,
                **spread.columns(),
                "floor_us": round(floor_us, 2),
                "ratio": round(spread.median / floor_us, 3),
                "tflops": round(point.operations / spread.median / 1e6, 1),
                "tile": label(next(iter(prepared.plans.values())).tile),
                "is_tuned": backend.misses.total() == missed,
            }
        )
    return found


def seconds_per_layer(
    work: Work, backend: TritonAttention, n_samples: int = SAMPLES
) -> list[float]:
    """Of each replay of all layers in one graph, as a forward runs them."""
    (spans,) = device_seconds([lambda: _forward(work, backend)], n_samples)
    return [seconds / work.keys.shape[0] for seconds in spans]


def _forward(work: Work, backend: TritonAttention) -> None:
    rule = LayerAttention(work.queries.shape[2] ** -0.5, Reach())
    attend = backend(work.rows, [rule.reach])
    for keys, values in zip(work.keys, work.values, strict=True):
        attend(work.queries, keys, values, rule)


def label(tile: Tile) -> str:
    """A tile in one word: queries x columns, then its other fields by their first letters."""
    heads = "" if tile.heads >= 128 else f"h{tile.heads}"
    shape = f"{tile.block_m}x{tile.block_n}w{tile.n_warps}s{tile.n_stages}p{tile.per_processor}"
    early = "e" if tile.is_overlapped else ""
    return f"{shape}c{tile.masked_cost}l{tile.least_blocks}{early}{heads}"
