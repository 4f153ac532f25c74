"""Kernels of some rounds from a trace of torch's profiler: by phase, by part, and how busy it was.

The exported trace is read, not the profiler's tables: there every kernel carries the number of
the call that launched it, so a kernel inside a graph is known to belong to verify or to draft.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from aerie.bench.ranges import NAMES
from aerie.bench.record import read_json
from aerie.engine.captured import Captured
from aerie.engine.engine import EngineCore
from aerie.tune.clock import HostClock, marked

# By part of the model, pieces of the names of its kernels; the first that fits. What fits nothing
# is counted as bookkeeping, so that its share is never understated.
PARTS = {
    "attention": ("attend_kernel", "merge_kernel", "unit_kernel", "program_kernel"),
    "linear": ("gemm", "gemv", "splitk", "cutlass", "nvjet", "_dot_kernel", "_fp8_"),
    "norm": ("norm_kernel",),
    "rotary and KV write": ("_rotate_kernel", "sin_kernel", "cos_kernel"),
    "activation": ("gate_kernel",),
    # The target's token of every row, and the draft's best children: K5's work, not the trees'.
    "sampling": ("_best_kernel", "_choose_kernel", "_part_kernel", "_join_kernel", "softmax"),
}
BOOKKEEPING = "bookkeeping"
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CALLS = ("cuda_runtime", "cuda_driver")
GRAPH_LAUNCH = "cudaGraphLaunch"
# Calls of the host that a summary counts.
COUNTED = {
    "launches_outside_graphs": (
        "cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx",
    ),
    "graph_launches": (GRAPH_LAUNCH,),
    "host_copies": ("cudaMemcpyAsync", "cudaMemcpy"),
    "host_waits": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
}  # fmt: skip
OUTSIDE = "outside graphs"
Event = Mapping[str, Any]
Span = tuple[str, tuple[Any, Any]]  # a graph by its first word, and the host's clock around it
NAME_LENGTH = 96  # of a kernel in a table; a C++ kernel's is its whole type


@dataclass(frozen=True)
class KernelSpan:
    """One kernel on the device's clock, in microseconds."""

    phase: str
    part: str
    kernel: str
    start: float
    end: float


@dataclass(frozen=True)
class Trace:
    """So many rounds of an engine: its kernels in order of their start, its ranges, its calls."""

    n_rounds: int
    intervals: tuple[KernelSpan, ...]
    ranges_us: dict[str, float]  # of a round, by name; empty where ranges are off
    calls: Mapping[str, int]  # of the host to the device's library, by name

    @property
    def span_us(self) -> float:
        """From the first kernel's start to the last one's end."""
        ends = max((entry.end for entry in self.intervals), default=0.0)
        return ends - min((entry.start for entry in self.intervals), default=0.0)

    @property
    def busy_us(self) -> float:
        """Time in which at least one kernel ran."""
        return self.n_rounds * sum(us for _, us in self.by().values())

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

    def rows(self, *keys: str) -> list[dict[str, Any]]:
        """The same as rows of a table."""
        return [
            {
                **dict(zip(keys, key, strict=True)),
                "calls_per_round": round(calls, 3),
                "us_per_round": round(us, 3),
            }
            for key, (calls, us) in self.by(*keys).items()
        ]

    def summary(self) -> dict[str, Any]:
        """Of a round: kernels, their time by part of the model, and the host's calls."""
        spent: dict[str, float] = defaultdict(float)
        for entry in self.intervals:
            spent[entry.part] += entry.end - entry.start
        busy, n_rounds = sum(spent.values()), self.n_rounds
        reads = [entry for entry in self.intervals if "DtoH" in entry.kernel]
        return {
            "rounds": n_rounds,
            "device_to_host_reads": round(len(reads) / n_rounds, 2),
            "kernels_per_round": round(len(self.intervals) / n_rounds, 1),
            "busy_us_per_round": round(busy / n_rounds, 1),
            "shares": {part: round(us / busy, 4) for part, us in sorted(spent.items())},
            **{
                what: round(sum(self.calls.get(name, 0) for name in names) / n_rounds, 3)
                for what, names in COUNTED.items()
            },
        }


def bookkeeping_share(profile: Mapping[str, Any], round_ms: float) -> float:
    """Of a round's own time: kernels that overlap are busy while they wait, sums say too much."""
    micros = profile["shares"].get(BOOKKEEPING, 0.0) * profile["busy_us_per_round"]
    return round(float(micros / (1e3 * round_ms)), 4)


def part_of(name: str) -> str:
    """The part of the model a kernel belongs to."""
    lowered = name.lower()
    parts = (part for part, pieces in PARTS.items() if any(p in lowered for p in pieces))
    return next(parts, BOOKKEEPING)


def trace_rounds(core: EngineCore, n_rounds: int) -> Trace:
    """Trace so many rounds of a warm engine."""
    is_gpu = core.memory.table.device.type == "cuda"
    # The host's own operations are traced only where they are wanted: noting them slows it down,
    # and captured rounds would wait for it.
    is_captured = is_gpu and isinstance(core.launcher, Captured)
    activities = [] if is_captured else [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if is_gpu else []
    if is_gpu:
        torch.cuda.synchronize()  # what was launched before is not in the trace
    graphs = marked(core.launcher.graphs, HostClock())
    with graphs as spans, profile(activities=activities) as profiler:
        for _ in range(n_rounds):
            core.step()
        if is_gpu:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = read_json(path)["traceEvents"]
    return read_trace(events, spans, n_rounds)


def read_trace(events: Sequence[Event], spans: Sequence[Span], n_rounds: int) -> Trace:
    """Intervals of an exported trace; `spans` are the graphs in the order they were launched."""
    whole = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in whole if event.get("cat") in DEVICE_EVENTS]
    launched = _launches(whole, [name for name, _ in spans])
    intervals = []
    for event in kernels:
        name, start = str(event["name"]), float(event["ts"])
        phase = launched.get(event.get("args", {}).get("correlation"), OUTSIDE)
        end = start + float(event["dur"])
        intervals.append(KernelSpan(phase, part_of(name), short(name), start, end))
    if not kernels:  # without a device the graphs themselves stand for kernels: a rehearsal
        intervals = [KernelSpan(n, BOOKKEEPING, n, 1e6 * a, 1e6 * b) for n, (a, b) in spans]
    ordered = tuple(sorted(intervals, key=lambda entry: entry.start))
    calls = Counter(event["name"] for event in whole if event.get("cat") in HOST_CALLS)
    return Trace(n_rounds, ordered, _ranges(whole, bool(kernels), n_rounds), calls)


def _launches(events: Sequence[Event], keys: Sequence[str]) -> dict[Any, str]:
    """Phase of every launch of a graph, by the number that its kernels carry too."""
    launches = (event for event in events if event["name"] == GRAPH_LAUNCH)
    found = sorted((float(e["ts"]), e["args"]["correlation"]) for e in launches if "args" in e)
    if len(found) != len(keys):
        return {}  # a graph was captured meanwhile: which launch was which is not known
    return {number: key for (_, number), key in zip(found, keys, strict=True)}


def _ranges(events: Sequence[Event], is_gpu: bool, n_rounds: int) -> dict[str, float]:
    category = "gpu_user_annotation" if is_gpu else "user_annotation"
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == category and event["name"] in NAMES:
            spent[event["name"]] += float(event["dur"]) / n_rounds
    return {name: round(spent[name], 3) for name in NAMES if name in spent}


def short(name: str) -> str:
    """A kernel's name without its libraries' namespaces, cut where only types follow."""
    for noise in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(noise, "")
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
