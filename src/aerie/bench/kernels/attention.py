"""Times tree attention through its backend, CUDA graphs only, beside the time its bytes take."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aerie.attention.contract import LayerAttention, Reach
from aerie.bench.kernels.attention_work import Heads, Point, Work, make_work
from aerie.bench.turns import device_seconds, recorded

if TYPE_CHECKING:
    from aerie.attention.triton import Tile, TritonAttention

SAMPLES, FEW_SAMPLES = 9, 5
# Points of the published table: rows of a tree, columns of its request, requests.
ROWS = (1, 16, 64, 128)
COLUMNS = (1024, 8192, 16384, 32768)
BATCHES = (1, 4)
# Prompts and the chunks they are read in.
PROMPTS = ((8192, 2048), (8192, 8192), (32768, 2048), (32768, 8192))


@dataclass(frozen=True)
class Timing:
    """One layer at one point; `floor_us` is the time its keys and values take at copy speed."""

    rows: int
    columns: int
    batch: int
    median_us: float
    p20_us: float
    p80_us: float
    floor_us: float
    ratio: float
    tflops: float
    tile: str
    is_tuned: bool


@dataclass(frozen=True)
class PromptTiming:
    """One layer over a whole prompt in chunks, beside one call of torch's flash attention."""

    prompt: int
    chunk: int
    milliseconds: float
    tflops: float
    flash_milliseconds: float
    ratio_to_flash: float


def tree_points() -> list[Point]:
    """The table's points."""
    return [Point(r, c, b) for b in BATCHES for c in COLUMNS for r in ROWS]


def measure(
    points: list[Point], backend: TritonAttention, storage: Tensor, bandwidth: float
) -> list[Timing]:
    """Time every point with the backend's own choice of tile."""
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


def kernel_microseconds(work: Work, backend: TritonAttention) -> dict[str, float]:
    """Mean time of each kernel of a forward, by the profiler: where a layer's time goes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _forward(work, backend)
        torch.cuda.synchronize()
    return {
        event.key: round(event.device_time_total / event.count, 2)
        for event in profiler.key_averages()
        if event.key.endswith("_kernel")
    }


def measure_prompt(
    prompt: int, chunk: int, heads: Heads, backend: TritonAttention, storage: Tensor
) -> PromptTiming:
    """Every chunk of a prompt, one layer each, against the whole prompt in one call."""
    points = [
        Point(chunk, end, 1, heads, storage.dtype, is_tree=False)
        for end in range(chunk, prompt + 1, chunk)
    ]
    parts = [
        statistics.median(seconds_per_layer(make_work(point, storage), backend, FEW_SAMPLES))
        for point in points
    ]
    operations = sum(point.operations for point in points)
    flash = _flash_seconds(prompt, heads, storage)
    return PromptTiming(
        prompt,
        chunk,
        round(sum(parts) * 1e3, 4),
        round(operations / sum(parts) / 1e12, 1),
        round(flash * 1e3, 4),
        round(sum(parts) / flash, 3),
    )


def rows_of(timings: list[Timing] | list[PromptTiming]) -> list[dict[str, Any]]:
    """Plain records for CSV and JSON."""
    return [asdict(timing) for timing in timings]


def label(tile: Tile) -> str:
    """A tile in one word: queries x columns, then its other fields by their first letters."""
    heads = "" if tile.heads >= 128 else f"h{tile.heads}"
    shape = f"{tile.block_m}x{tile.block_n}w{tile.n_warps}s{tile.n_stages}p{tile.per_processor}"
    early = "e" if tile.is_overlapped else ""
    return f"{shape}c{tile.masked_cost}l{tile.least_blocks}{early}{heads}"


def _timing(point: Point, backend: TritonAttention, work: Work, bandwidth: float) -> Timing:
    missed = backend.misses.total()
    seconds = seconds_per_layer(work, backend)
    median, fifths = statistics.median(seconds), statistics.quantiles(seconds, n=5)
    floor = point.kv_bytes / bandwidth
    prepared = backend(work.rows, [Reach()])
    prepared(work.queries, work.keys[0], work.values[0], LayerAttention(1.0, Reach()))
    return Timing(
        rows=point.rows,
        columns=point.columns,
        batch=point.batch,
        median_us=round(median * 1e6, 2),
        p20_us=round(fifths[0] * 1e6, 2),
        p80_us=round(fifths[3] * 1e6, 2),
        floor_us=round(floor * 1e6, 2),
        ratio=round(median / floor, 3),
        tflops=round(point.operations / median / 1e12, 1),
        tile=label(next(iter(prepared.plans.values())).tile),
        is_tuned=backend.misses.total() == missed,
    )


def _flash_seconds(prompt: int, heads: Heads, storage: Tensor) -> float:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    shape = (3, 1, heads.n_heads, prompt, heads.head_dim)
    q, k, v = torch.randn(shape, dtype=storage.dtype, device=storage.device)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        call = partial(scaled_dot_product_attention, q, k, v, is_causal=True)
        return statistics.median(device_seconds([call], FEW_SAMPLES)[0])
