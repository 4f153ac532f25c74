"""What is compared takes turns; and what a call takes, on the host or inside a CUDA graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import torch

T = TypeVar("T")


def in_turns(
    ways: Mapping[str, Callable[[], T]], n_turns: int, n_warm: int = 1
) -> dict[str, list[T]]:
    """What each way returns in so many turns; those before them, that warm up, are not kept.

    Every turn begins with another way: clocks drift, and what ran before, for all alike.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    for turn in range(-n_warm, n_turns):
        for name in rotated(list(ways), turn):
            result = ways[name]()
            if turn >= 0:
                found[name].append(result)
    return found


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """All names, of every turn another one first."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def synchronise(device: str) -> None:
    """Wait for a device, where there is one to wait for."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(call: Callable[[], object], device: str = "cpu") -> Callable[[], float]:
    """A call that returns its seconds by the host's clock, the device's work included."""

    def run() -> float:
        synchronise(device)
        begin = time.perf_counter()
        call()
        synchronise(device)
        return time.perf_counter() - begin

    return run


def recorded(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A call's kernels as a graph, so that Python and launches are not timed with them."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # what the call reads may just be made
    with torch.cuda.stream(side):
        call()  # compiled, and warm
        side.synchronize()
        graph.capture_begin()
        call()
        graph.capture_end()
    return graph


def device_seconds(calls: Sequence[Callable[[], object]], n_turns: int) -> list[list[float]]:
    """Seconds of each call as a graph by the device's own clock, in turns behind one that warms up.

    What is launched next is in line before a call has ended: the host is not waited for.
    """
    graphs = [recorded(call) for call in calls]
    n_calls = len(calls)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range((n_turns + 1) * n_calls + 1)]
    marks[0].record()
    for place, mark in enumerate(marks[1:]):
        graphs[place % n_calls].replay()
        mark.record()
    marks[-1].synchronize()
    spans = [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]
    return [spans[n_calls + own :: n_calls] for own in range(n_calls)]


class Spread(NamedTuple):
    """Microseconds of a call: the median, and the 20th and 80th of a hundred."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of all calls."""
        fifths = statistics.quantiles(seconds, n=5)
        return cls(1e6 * statistics.median(seconds), 1e6 * fifths[0], 1e6 * fifths[3])

    def columns(self) -> dict[str, float]:
        """As rows have it."""
        return {f"{name}_us": round(us, 2) for name, us in self._asdict().items()}
