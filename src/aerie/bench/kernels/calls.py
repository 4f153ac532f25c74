"""Times every tree kernel: median, bytes, achieved bandwidth and the ratio to a copy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
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

CONTEXT = 1024
VOCABULARY = 4096
HIDDEN = 4096
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
