"""Kernels of some rounds from a trace of torch's profiler: by phase, by part, and how busy it was.

The exported trace is read, not the profiler's tables: there every kernel carries the number of
the call that launched it, so a kernel inside a graph is known to belong to verify or to draft.
"""

from __future__ import annotations

import tempfile
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from aerie.bench.profile.ranges import NAMES
from aerie.bench.record import read_json
from aerie.bench.round.kernels import BOOKKEEPING, part_of
from aerie.engine.captured import Captured
from aerie.engine.engine import EngineCore

DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
GRAPH_LAUNCH = "cudaGraphLaunch"
PHASE = "phase "  # before the name of a graph's mark
# Host operations of a rehearsal, by the part a kernel of theirs would belong to.
HOST_PARTS = {
    "aten::addmm": "linear",
    "aten::mm": "linear",
    "aten::bmm": "attention",
    "aten::silu": "activation",
    "aten::rsqrt_": "norm",
}
OUTSIDE = "outside graphs"
NAME_LENGTH = 96  # of a kernel in a table; a C++ kernel's is its whole type


@dataclass(frozen=True)
class Interval:
    """One kernel on the device's clock, in microseconds."""

    phase: str
    part: str
    kernel: str
    start: float
    end: float

    @property
    def us(self) -> float:
        """How long it ran."""
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """So many rounds of an engine: its kernels in order of their start, and its ranges."""

    n_rounds: int
    n_tokens: int
    intervals: tuple[Interval, ...]
    ranges_us: dict[str, float]  # of a round, by name; empty where ranges are off

    @property
    def span_us(self) -> float:
        """From the first kernel's start to the last one's end."""
        ends = max((entry.end for entry in self.intervals), default=0.0)
        return ends - min((entry.start for entry in self.intervals), default=0.0)

    @property
    def busy_us(self) -> float:
        """Time in which at least one kernel ran."""
        return covered((entry.start, entry.end) for entry in self.intervals)

    @property
    def busy_share(self) -> float:
        """Part of the span in which the device worked."""
        return self.busy_us / self.span_us if self.intervals else 0.0

    def by(self, *keys: str) -> dict[tuple[str, ...], tuple[float, float]]:
        """Calls and microseconds of a round by these fields of an interval, slowest first.

        While two kernels run, the time is the earlier one's: a merge that is brought up early
        waits for what it merges. So the times add up to the busy time.
        """
        calls: dict[tuple[str, ...], float] = defaultdict(float)
        spent: dict[tuple[str, ...], float] = defaultdict(float)
        reached = float("-inf")
        for entry in self.intervals:
            key = tuple(getattr(entry, name) for name in keys)
            calls[key] += 1 / self.n_rounds
            spent[key] += max(0.0, entry.end - max(entry.start, reached)) / self.n_rounds
            reached = max(reached, entry.end)
        return {key: (calls[key], spent[key]) for key in sorted(spent, key=lambda k: -spent[k])}

    def one_round(self) -> list[Interval]:
        """The kernels of the first whole round: up to where its first phase begins again."""
        first = [entry for entry in self.intervals if entry.phase != OUTSIDE] or list(
            self.intervals
        )
        wanted, seen = [], []
        for entry in first:
            if entry.phase not in seen:
                seen.append(entry.phase)
            elif entry.phase != seen[-1]:
                break
            wanted.append(entry)
        n_first = -(-len(first) // self.n_rounds)
        return wanted[:n_first]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def trace_rounds(core: EngineCore, n_rounds: int) -> Trace:
    """Trace so many rounds of a warm engine."""
    is_gpu = core.memory.table.device.type == "cuda"
    # The host's own operations are traced only where they are wanted: noting them slows it down,
    # and captured rounds would wait for it.
    is_captured = is_gpu and isinstance(core.launcher, Captured)
    activities = [] if is_captured else [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if is_gpu else []
    keys: list[str] = []
    n_tokens = 0
    if is_gpu:
        torch.cuda.synchronize()  # what was launched before is not in the trace
    with _phases_noted(core, keys), profile(activities=activities) as profiler:
        for _ in range(n_rounds):
            n_tokens += sum(len(getattr(event, "tokens", ())) for event in core.step())
        if is_gpu:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = read_json(path)["traceEvents"]
    return read_trace(events, keys, n_rounds, n_tokens)


@contextmanager
def _phases_noted(core: EngineCore, keys_out: list[str]) -> Iterator[None]:
    """The phase of every graph that runs meanwhile: as a list, and as a mark on the host."""
    graphs: Any = core.launcher.graphs
    run = graphs.run

    def marked_run(key: Any, call: Callable[[], Any]) -> Any:
        keys_out.append(str(key[0]))
        with record_function(PHASE + str(key[0])):
            return run(key, call)

    graphs.run = marked_run
    try:
        yield
    finally:
        del graphs.run  # the method shows again


def read_trace(
    events: Sequence[Mapping[str, Any]], keys: Sequence[str], n_rounds: int, n_tokens: int
) -> Trace:
    """Intervals of an exported trace; `keys` are the phases in the order they were launched."""
    whole = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in whole if event.get("cat") in DEVICE_EVENTS]
    launched = _launches(whole, keys)
    spans = _phase_spans(whole)
    intervals = []
    # Without a device the leaves of the host's operations stand for kernels: a rehearsal.
    for event in kernels or _leaves(whole):
        name, start = str(event["name"]), float(event["ts"])
        own = event.get("args", {}).get("correlation")
        phase = launched.get(own, OUTSIDE) if kernels else phase_at(spans, start)
        part = part_of(name) if kernels else HOST_PARTS.get(name, BOOKKEEPING)
        intervals.append(Interval(phase, part, short(name), start, start + float(event["dur"])))
    ordered = tuple(sorted(intervals, key=lambda entry: entry.start))
    return Trace(n_rounds, n_tokens, ordered, _ranges(whole, bool(kernels), n_rounds))


def _launches(events: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[Any, str]:
    """Phase of every launch of a graph, by the number that its kernels carry too."""
    found = sorted((float(e["ts"]), e["args"]["correlation"]) for e in events if _is_launch(e))
    if len(found) != len(keys):
        return {}  # a graph was captured meanwhile: which launch was which is not known
    return {number: key for (_, number), key in zip(found, keys, strict=True)}


def _is_launch(event: Mapping[str, Any]) -> bool:
    return event["name"] == GRAPH_LAUNCH and "correlation" in event.get("args", {})


def _phase_spans(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, str]]:
    return sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and str(event["name"]).startswith(PHASE)
    )


def phase_at(spans: Sequence[tuple[float, float, str]], moment: float) -> str:
    """The phase whose mark holds a moment of the host."""
    place = bisect([start for start, _, _ in spans], moment) - 1
    if place < 0 or moment > spans[place][1]:
        return OUTSIDE
    return spans[place][2].removeprefix(PHASE)


def _ranges(events: Sequence[Mapping[str, Any]], is_gpu: bool, n_rounds: int) -> dict[str, float]:
    category = "gpu_user_annotation" if is_gpu else "user_annotation"
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == category and event["name"] in NAMES:
            spent[event["name"]] += float(event["dur"]) / n_rounds
    return {name: round(spent[name], 3) for name in NAMES if name in spent}


def _leaves(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Host operations that start no other, and products whatever they start."""
    host = sorted(
        (event for event in events if event.get("cat") == "cpu_op"),
        key=lambda event: (float(event["ts"]), -float(event["dur"])),
    )
    found, reached = [], float("-inf")
    for event, after in zip(host, [*host[1:], None], strict=True):
        start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        is_leaf = after is None or float(after["ts"]) >= end
        if start >= reached and (is_leaf or event["name"] in HOST_PARTS):
            found.append(event)
            reached = end
    return found


def short(name: str) -> str:
    """A kernel's name without its libraries' namespaces, cut where only types follow."""
    for noise in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(noise, "")
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
