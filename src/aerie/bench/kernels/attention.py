"""Times tree attention through its backend, CUDA graphs only, beside the time its bytes take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from aerie.attention.contract import LayerAttention, Reach
from aerie.bench.kernels.attention_work import Point, Work, make_work
from aerie.bench.turns import Spread, device_seconds, recorded

if TYPE_CHECKING:
    from aerie.attention.triton import Tile, TritonAttention

SAMPLES = 9
# Points of the published table: rows of a tree, columns of its request, requests.
ROWS = (1, 16, 64, 128)
COLUMNS = (1024, 8192, 16384, 32768)
BATCHES = (1, 4)


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
    return [_timing(point, backend, make_work(point, storage), bandwidth) for point in points]


def seconds_per_layer(
    work: Work, backend: TritonAttention, n_samples: int = SAMPLES
) -> list[float]:
    """Of each replay of all layers in one graph, as a forward runs them."""
    (spans,) = device_seconds([recorded(lambda: _forward(work, backend)).replay], n_samples)
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


def _timing(point: Point, backend: TritonAttention, work: Work, bandwidth: float) -> dict[str, Any]:
    missed = backend.misses.total()
    spread, floor_us = Spread.of(seconds_per_layer(work, backend)), 1e6 * point.kv_bytes / bandwidth
    prepared = backend(work.rows, [Reach()])
    prepared(work.queries, work.keys[0], work.values[0], LayerAttention(1.0, Reach()))
    return {
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
