"""Times tree kernels: on the host beside a copy, and inside CUDA graphs with fused operations.

A graph holds the call several times over, so that what is measured is kernels and the gaps the
device leaves between them, not Python. Inputs are small and stay in the cache, as in a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.kernels.shape import Shape
from aerie.bench.kernels.workload import workload
from aerie.bench.provenance import provenance
from aerie.bench.record import shown
from aerie.kernels import load
from aerie.kernels.arrays import on_device
from aerie.kernels.binding import bind
from aerie.kernels.registry import Kernel

if TYPE_CHECKING:
    from rich.table import Table

CONTEXT, VOCABULARY, HIDDEN = 1024, 4096, 4096
# A slow point (the reference at large sizes) stops repeating after this long.
SECONDS_PER_KERNEL = 1.0
COLUMNS = {
    "kernel": "{kernel}",
    "backend": "{backend}",
    "B": "{batch}",
    "verify": "{verify}",
    "median": "{median_us:,.0f} µs",
    "p20..p80": "{p20_us:,.0f}..{p80_us:,.0f}",
    "bytes": "{bytes_moved:,}",
    "GB/s": "{gbps:.3f}",
    "of ceiling": "{ratio_to_ceiling:.2%}",
}
CALLS = 20
REPLAYS = 9
DECODER_VOCABULARY = 128_256  # of the decoder whose operations are timed inside graphs
_SCORE = "draft_tree_layer_score_index_gen_op"


@dataclass(frozen=True)
class Point:
    """One operating point: a backend at a batch size and a number of rows per request."""

    backend: str
    batch: int
    verify: int


@dataclass(frozen=True)
class Timing:
    """One kernel at one point."""

    kernel: str
    backend: str
    batch: int
    verify: int
    median_us: float
    p20_us: float
    p80_us: float
    calls: int
    bytes_moved: int
    gbps: float
    ratio_to_ceiling: float
    kind: str = "measured"


@dataclass(frozen=True)
class KernelBench:
    """All timings of a run, with the ceiling they are held against."""

    device: str
    ceiling_gbps: float
    timings: tuple[Timing, ...]

    def table(self) -> Table:
        """The timings for a terminal."""
        return shown(COLUMNS, map(asdict, self.timings))

    def payload(self) -> dict[str, Any]:
        """The machine-readable result."""
        return {
            "ok": bool(self.timings),
            "ceiling_gbps": round(self.ceiling_gbps, 2),
            "provenance": provenance(self.device),
            "shape": {"context": CONTEXT, "vocabulary": VOCABULARY, "hidden": HIDDEN},
            "points": [asdict(entry) for entry in self.timings],
        }


def measure_all(
    points: list[Point], device: str, repeats: int, on_point: Callable[[], None]
) -> KernelBench:
    """Measure the ceiling, then every kernel at every point."""
    ceiling = copy_bandwidth(device)["gbps"]
    timings: list[Timing] = []
    for point in points:
        shape = Shape(point.batch, point.verify, CONTEXT, VOCABULARY, HIDDEN)
        kernels = load(point.backend, device=device)
        for name, inputs in workload(shape).items():
            placed = {key: on_device(value, device) for key, value in inputs.items()}
            timings.append(_measure(kernels[name], placed, point, repeats, ceiling))
        on_point()
    return KernelBench(device, ceiling, tuple(timings))


def _measure(
    kernel: Kernel, inputs: dict[str, Any], point: Point, repeats: int, ceiling: float
) -> Timing:
    sizes = bind(kernel.card, inputs)
    moved = kernel.card.cost.bytes_read(sizes) + kernel.card.cost.bytes_written(sizes)
    seconds = _times(lambda: kernel(**inputs), repeats)
    median = statistics.median(seconds)
    fifths = statistics.quantiles(seconds, n=5)
    gbps = moved / median / 1e9
    return Timing(
        kernel=kernel.card.name,
        backend=point.backend,
        batch=point.batch,
        verify=point.verify,
        median_us=round(median * 1e6, 2),
        p20_us=round(fifths[0] * 1e6, 2),
        p80_us=round(fifths[3] * 1e6, 2),
        calls=len(seconds),
        bytes_moved=moved,
        gbps=round(gbps, 4),
        ratio_to_ceiling=round(gbps / ceiling, 6),
    )


def _times(call: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call, after one warm-up; at least three, then until the time is spent."""
    _timed(call)
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < repeats and sum(seconds) < SECONDS_PER_KERNEL):
        seconds.append(_timed(call))
    return seconds


def _timed(call: Callable[[], object]) -> float:
    _wait()
    start = time.perf_counter()
    call()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class GraphTime:
    """Microseconds of one call inside a graph."""

    what: str
    variant: str
    batch: int
    rows: int
    us: float
    p20_us: float
    p80_us: float
    bytes_moved: int


def graph_us(call: Callable[[], object]) -> tuple[float, float, float]:
    """Median, 20th and 80th percentile of a call's microseconds."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
        call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for _ in range(CALLS):
            call()
        graph.capture_end()
        graph.replay()
        spans = []
        for _ in range(REPLAYS):
            first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            second.record()
            second.synchronize()
            spans.append(1e3 * float(first.elapsed_time(second)) / CALLS)
    fifths = statistics.quantiles(spans, n=5)
    return statistics.median(spans), fifths[0], fifths[3]


def time_kernels(
    backends: tuple[str, ...], points: tuple[tuple[int, int], ...]
) -> Iterator[GraphTime]:
    """Every kernel of every backend at (batch, rows per request)."""
    for batch, rows in points:
        inputs = workload(Shape(batch, rows, CONTEXT, DECODER_VOCABULARY, HIDDEN))
        for backend in backends:
            kernels = load(backend, "cuda", data_errors="status")
            for name, arrays in inputs.items():
                placed = {key: on_device(value, "cuda") for key, value in arrays.items()}
                sizes = bind(kernels[name].card, placed)
                cost = kernels[name].card.cost
                moved = cost.bytes_read(sizes) + cost.bytes_written(sizes)
                kernel = kernels[name]
                found = graph_us(partial(kernel, **placed))
                yield GraphTime(name, backend, batch, rows, *found, moved)


def time_operations(n_rows: tuple[int, ...]) -> Iterator[GraphTime]:
    """Fused layer operations against PyTorch's, and the draft's top K, at some numbers of rows."""
    from aerie.models.layer_ops import TORCH_OPS, fused_ops

    for rows in n_rows:
        for variant, ops in (("pytorch", TORCH_OPS), ("triton", fused_ops())):
            for what, call, moved in _operation_calls(ops, rows):
                yield GraphTime(what, variant, 1, rows, *graph_us(call), moved)
        yield from _draft_times(rows)


def _operation_calls(ops: Any, rows: int) -> list[tuple[str, Callable[[], object], int]]:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").bfloat16()

    x, added, gate_up = draw(rows, HIDDEN), draw(rows, HIDDEN), draw(rows, 28672)
    weight = torch.ones(HIDDEN, device="cuda")
    heads = [part.unflatten(1, (-1, 128)) for part in draw(rows, 6144).split([4096, 1024, 1024], 1)]
    angle = torch.rand(rows, 1, 64, device="cuda")
    rotation, slots = (angle.cos(), angle.sin()), torch.arange(1, rows + 1, device="cuda")
    stored = draw(256, 8, 128), draw(256, 8, 128)
    return [
        ("normalise", lambda: ops.normalise(x, weight, 1e-5), 4 * x.numel()),
        ("add_normalise", lambda: ops.add_normalise(x, added, weight, 1e-5), 8 * x.numel()),
        ("gate", lambda: ops.gate(*gate_up.split(14336, 1)), 3 * gate_up.numel()),
        (
            "rotate_store",
            lambda: ops.rotate_store(tuple(heads), rotation, slots, stored),
            4 * rows * 6144,
        ),
    ]


def _softmax_top(logits: torch.Tensor) -> object:
    return torch.softmax(logits, -1).topk(8, dim=-1)


def _draft_times(rows: int) -> Iterator[GraphTime]:
    best = load("triton", "cuda", data_errors="status")["best_draft_children"]
    for vocab in (32_000, DECODER_VOCABULARY):
        logits = torch.randn(rows, vocab, device="cuda")
        calls: dict[str, Callable[[], object]] = {
            "pytorch": partial(_softmax_top, logits),
            "triton": partial(best, logits=logits, node_top_k=8),
        }
        for variant, call in calls.items():
            found = graph_us(call)
            yield GraphTime(f"draft_top_{vocab}", variant, 1, rows, *found, 4 * rows * vocab)


def time_layer(batches: tuple[int, ...], verify: int = 64) -> Iterator[GraphTime]:
    """A whole draft layer by R7, at the widths of a tree of 8 x 8."""
    grow = load("triton", "cuda", data_errors="status")["grow_draft_layer"]
    for batch in batches:
        inputs = workload(Shape(batch, verify, CONTEXT, 4096, HIDDEN))
        layer, state = inputs[_SCORE], inputs["update_cumu_draft_state"]
        wanted = {port.name for port in grow.card.inputs}
        arrays = {**layer, **state, "topk_tokens": layer["topk_tokens"]}
        call = {key: on_device(arrays[key], "cuda") for key in wanted}
        call["input_hidden"] = call["input_hidden"].bfloat16()
        counts = {key: state[key] for key in ("cumu_count", "fed_count")}
        found = graph_us(partial(grow, **call, **counts, verify_num=verify, weigh=True))
        yield GraphTime("grow_layer", "triton", batch, verify, *found, 0)
