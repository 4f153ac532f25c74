"""Times tree kernels: on the host beside a copy, and inside CUDA graphs with fused operations.

A graph holds the call several times over, so that what is measured is kernels and the gaps the
device leaves between them, not Python. Inputs are small and stay in the cache, as in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.kernels.workload import Shape, workload
from aerie.bench.provenance import provenance
from aerie.bench.record import shown
from aerie.bench.turns import Spread, device_seconds, timed
from aerie.kernels import load
from aerie.kernels.arrays import on_device
from aerie.kernels.binding import bind
from aerie.kernels.registry import Kernel, Kernels

if TYPE_CHECKING:
    from rich.table import Table

CONTEXT, VOCABULARY, HIDDEN = 1024, 4096, 4096
# A slow point (the reference at large sizes) stops repeating after this long.
SECONDS_PER_KERNEL, LEAST_CALLS = 1.0, 3
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


@dataclass(frozen=True)
class Point:
    """One operating point: a backend at a batch size and a number of rows per request."""

    backend: str
    batch: int
    verify: int


def measure_all(
    points: list[Point], device: str, repeats: int, on_point: Callable[[], None]
) -> dict[str, Any]:
    """Measure the ceiling, then every kernel at every point; JSON values."""
    ceiling = copy_bandwidth(device)["gbps"]
    rows: list[dict[str, Any]] = []
    for point in points:
        shape = Shape(point.batch, point.verify, CONTEXT, VOCABULARY, HIDDEN)
        for kernel, inputs in _calls(load(point.backend, device=device), shape, device):
            seconds = _times(timed(partial(kernel, **inputs), device), repeats)
            moved, spread = _bytes_moved(kernel, inputs), Spread.of(seconds)
            gbps = moved / spread.median / 1e3
            rows.append(
                {
                    "kernel": kernel.card.name,
                    **vars(point),
                    **spread.columns(),
                    "calls": len(seconds),
                    "bytes_moved": moved,
                    "gbps": round(gbps, 4),
                    "ratio_to_ceiling": round(gbps / ceiling, 6),
                    "kind": "measured",
                }
            )
        on_point()
    return {
        "ok": bool(rows),
        "ceiling_gbps": round(ceiling, 2),
        "provenance": provenance(device),
        "shape": {"context": CONTEXT, "vocabulary": VOCABULARY, "hidden": HIDDEN},
        "points": rows,
    }


def table_of(found: dict[str, Any]) -> Table:
    """The timings for a terminal."""
    return shown(COLUMNS, found["points"])


def _calls(kernels: Kernels, shape: Shape, device: str) -> Iterator[tuple[Kernel, dict[str, Any]]]:
    """Every kernel with the arrays of its call where they are needed."""
    for name, inputs in workload(shape).items():
        yield kernels[name], {key: on_device(value, device) for key, value in inputs.items()}


def _bytes_moved(kernel: Kernel, inputs: dict[str, Any]) -> int:
    sizes = bind(kernel.card, inputs)
    return kernel.card.cost.bytes_read(sizes) + kernel.card.cost.bytes_written(sizes)


def _times(call: Callable[[], float], repeats: int) -> list[float]:
    """Seconds of each call, after one warm-up; at least three, then until the time is spent."""
    call()
    seconds: list[float] = []
    while len(seconds) < LEAST_CALLS or (
        len(seconds) < repeats and sum(seconds) < SECONDS_PER_KERNEL
    ):
        seconds.append(call())
    return seconds


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


def graph_us(call: Callable[[], object]) -> Spread:
    """Microseconds of a call among others of its kind."""

    def repeated() -> None:
        for _ in range(CALLS):
            call()

    (spans,) = device_seconds([repeated], REPLAYS)
    return Spread.of([seconds / CALLS for seconds in spans])


def time_kernels(
    backends: tuple[str, ...], points: tuple[tuple[int, int], ...]
) -> Iterator[GraphTime]:
    """Every kernel of every backend at (batch, rows per request)."""
    for batch, rows in points:
        shape = Shape(batch, rows, CONTEXT, DECODER_VOCABULARY, HIDDEN)
        for backend in backends:
            kernels = load(backend, "cuda", data_errors="status")
            for kernel, inputs in _calls(kernels, shape, "cuda"):
                found, moved = graph_us(partial(kernel, **inputs)), _bytes_moved(kernel, inputs)
                yield GraphTime(kernel.card.name, backend, batch, rows, *found, moved)


def time_operations(n_rows: tuple[int, ...]) -> Iterator[GraphTime]:
    """Fused layer operations against PyTorch's, at some numbers of rows."""
    from aerie.models.layer_ops import TORCH_OPS, fused_ops

    for rows in n_rows:
        for variant, ops in (("pytorch", TORCH_OPS), ("triton", fused_ops())):
            for what, call, moved in _operation_calls(ops, rows):
                yield GraphTime(what, variant, 1, rows, *graph_us(call), moved)


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
