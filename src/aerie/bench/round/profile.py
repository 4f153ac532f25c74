"""What a round is made of: every kernel by name, its share, and what ran outside the graphs."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from aerie.engine.engine import EngineCore

# Parts of a kernel's name, and the part of the model it belongs to; the first that matches.
# What matches nothing is counted as bookkeeping, so that its share is never understated.
MODEL_KERNELS: tuple[tuple[str, str], ...] = (
    ("attend_kernel", "attention"),
    ("merge_kernel", "attention"),
    ("unit_kernel", "attention"),
    ("program_kernel", "attention"),
    ("gemm", "linear"),
    ("gemv", "linear"),
    ("splitK", "linear"),
    ("cutlass", "linear"),
    ("nvjet", "linear"),
    ("_dot_kernel", "linear"),
    ("norm_kernel", "norm"),
    ("_rotate_kernel", "rotary and KV write"),
    ("sin_kernel", "rotary and KV write"),
    ("cos_kernel", "rotary and KV write"),
    ("gate_kernel", "activation"),
    # The target's token of every row, and the draft's best children: K5's work, not the trees'.
    ("_best_kernel", "sampling"),
    ("_choose_kernel", "sampling"),
    ("_part_kernel", "sampling"),
    ("_join_kernel", "sampling"),
    ("softmax", "sampling"),
)
BOOKKEEPING = "bookkeeping"
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COPIES = ("cudaMemcpyAsync", "cudaMemcpy")


@dataclass(frozen=True)
class KernelRow:
    """One kernel of a round."""

    name: str
    part: str
    calls_per_round: float
    us_per_round: float


@dataclass(frozen=True)
class RoundProfile:
    """Kernels by time, and the host's calls."""

    rounds: int
    kernels: tuple[KernelRow, ...]
    host: dict[str, float]  # calls per round by name

    def shares(self) -> dict[str, float]:
        """Share of the device's busy time by part."""
        total = sum(row.us_per_round for row in self.kernels) or 1.0
        parts: dict[str, float] = defaultdict(float)
        for row in self.kernels:
            parts[row.part] += row.us_per_round / total
        return {part: round(share, 4) for part, share in sorted(parts.items())}

    def summary(self) -> dict[str, Any]:
        """JSON values."""
        reads = [row for row in self.kernels if "DtoH" in row.name]
        return {
            "rounds": self.rounds,
            "device_to_host_reads": round(sum(row.calls_per_round for row in reads), 2),
            "kernels_per_round": round(sum(row.calls_per_round for row in self.kernels), 1),
            "busy_us_per_round": round(sum(row.us_per_round for row in self.kernels), 1),
            "shares": self.shares(),
            "launches_outside_graphs": sum(self.host.get(name, 0.0) for name in LAUNCHES),
            "graph_launches": self.host.get("cudaGraphLaunch", 0.0),
            "host_copies": sum(self.host.get(name, 0.0) for name in COPIES),
            "host_waits": sum(self.host.get(name, 0.0) for name in WAITS),
        }

    def csv(self) -> str:
        """One line per kernel, slowest first."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("part", "kernel", "calls_per_round", "us_per_round"))
        for row in self.kernels:
            writer.writerow((row.part, row.name, row.calls_per_round, round(row.us_per_round, 3)))
        return out.getvalue()


def profile_rounds(core: EngineCore, n_rounds: int) -> RoundProfile:
    """Trace so many rounds of an engine that is already warm."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as trace:
        for _ in range(n_rounds):
            core.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return _summed(trace.events(), n_rounds)


def _summed(events: Iterable[Any], n_rounds: int) -> RoundProfile:
    calls: dict[str, int] = defaultdict(int)
    micros: dict[str, float] = defaultdict(float)
    host: dict[str, float] = defaultdict(float)
    for event in events:
        if event.device_type.name == "CUDA":
            calls[event.name] += 1
            micros[event.name] += event.device_time
        elif event.name.startswith(("cuda", "cu")):
            host[event.name] += 1 / n_rounds
    rows = [
        KernelRow(name, part_of(name), calls[name] / n_rounds, micros[name] / n_rounds)
        for name in sorted(micros, key=lambda name: -micros[name])
    ]
    return RoundProfile(n_rounds, tuple(rows), {k: round(v, 3) for k, v in host.items()})


def bookkeeping_share(profile: dict[str, Any], round_ms: float) -> float:
    """Of a round's own time: kernels that overlap are busy while they wait, sums say too much."""
    micros = profile["shares"].get(BOOKKEEPING, 0.0) * profile["busy_us_per_round"]
    return round(float(micros / (1e3 * round_ms)), 4)


def part_of(name: str) -> str:
    """The part of the model a kernel belongs to."""
    lowered = name.lower()
    for pattern, part in MODEL_KERNELS:
        if pattern.lower() in lowered:
            return part
    return BOOKKEEPING
