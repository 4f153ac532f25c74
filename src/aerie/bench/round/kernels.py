"""What rounds are made of, kernel by kernel, and planned ones beside fixed ones."""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from aerie.bench.ceilings import synchronise
from aerie.bench.lane import captured
from aerie.bench.round.setup import Room, RoundSetup, abandon, read_prompts, start
from aerie.bench.round.speed import run_without_waiting, step_to_room
from aerie.by_context import ByContext
from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.sampler import GREEDY
from aerie.models.inflate.embed import LargePair

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
    ("_fp8_", "linear"),
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
PLANNER = "planner"
RIVALS = {
    "plain": SpeculationConfig(method="none"),
    "chain3": SpeculationConfig(top_k=1, depth=3, nodes=4),
    "chain5": SpeculationConfig(top_k=1, depth=5, nodes=6),
    "chain7": SpeculationConfig(top_k=1, depth=7, nodes=8),
    "tree16": SpeculationConfig(top_k=8, depth=5, nodes=16),
    "tree32": SpeculationConfig(top_k=8, depth=5, nodes=32),
    PLANNER: SpeculationConfig(policy="planner"),
}
N_TURNS = 2  # timed; one before them warms up
PROFILED = 8
N_TRACED = 600  # tokens of the texts whose rounds are traced


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


def compare_planner(
    setup: RoundSetup, pair: LargePair, context: int, batch: int, n_new: int
) -> tuple[dict[str, Any], EngineCore]:
    """Tokens per second of every policy on the same prompts, and the planner's engine; JSON."""
    room = Room(batch, context + n_new + 1024)
    cores = {name: setup.core(pair, policy, room) for name, policy in RIVALS.items()}
    for core in cores.values():
        # Requests end one after the other: smaller batches come by themselves.
        for n_requests in {size for size in (*room.graphs.slots, batch) if size <= batch}:
            captured(core).record(n_requests, context, GREEDY)
    every = read_prompts(batch * (1 + N_TURNS), context, pair.target.geometry.vocab_size)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RIVALS}
    for turn in range(1 + N_TURNS):
        prompts = every[turn * batch : (turn + 1) * batch]
        for name, core in cores.items():
            found[name].append(_write(core, setup.device, prompts, n_new))
    return {name: _summary(turns[1:]) for name, turns in found.items()}, cores[PLANNER]


def _write(core: EngineCore, device: str, prompts: list[list[int]], n_new: int) -> dict[str, Any]:
    """Decode all prompts to the end; prefill is not timed."""
    ids = start(core, prompts, n_new)
    graphs = captured(core).graphs
    launched: Counter[str] = Counter()
    graphs.watch = lambda key: launched.update(_names(key))
    captures = graphs.counts.captures
    before = sum(len(core.request(i).output) for i in ids)
    synchronise(device)
    begin = time.perf_counter()
    n_steps = 0
    while not core.is_idle:
        core.step()
        n_steps += 1
    synchronise(device)
    seconds = time.perf_counter() - begin
    graphs.watch = lambda key: None
    done = [core.forget(i) for i in ids]
    return {
        "tokens_per_second": (sum(len(r.output) for r in done) - before) / seconds,
        "ms_per_step": 1e3 * seconds / n_steps,
        "acceptance": [r.statistics.mean_acceptance_length for r in done],
        "by_context": ByContext.total(r.statistics.by_context for r in done),
        "captures": graphs.counts.captures - captures,
        "launched": dict(launched.most_common(8)),
    }


def _names(key: Any) -> list[str]:
    """A verification or a draft in words; what else a round launches follows from no plan."""
    kind, *sizes = key
    if kind == "draft":
        widths = sizes[1]
        return [f"{kind} {len(widths)}x{widths[0] if widths else 0}"]
    return [f"{kind} {sizes[0].rows}"] if kind == "verify" else []


def _summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    speeds = [turn["tokens_per_second"] for turn in turns]
    accepted = [length for turn in turns for length in turn["acceptance"]]
    return {
        "tokens_per_second": round(statistics.median(speeds), 1),
        "turns": [round(speed, 1) for speed in speeds],
        "ms_per_step": round(statistics.median(turn["ms_per_step"] for turn in turns), 4),
        "acceptance_length": round(statistics.mean(accepted), 3),
        "acceptance_by_context": ByContext.total(turn["by_context"] for turn in turns).lengths(),
        "captures": [turn["captures"] for turn in turns],
        "launched": turns[-1]["launched"],
    }


def profile_planner(
    setup: RoundSetup, core: EngineCore, prompts: list[list[int]]
) -> tuple[dict[str, Any], str]:
    """Waits of planned rounds that are under way, and every kernel of theirs; JSON and CSV."""
    core.step()  # the last text's report is read, and its seats are free
    ids = start(core, prompts, N_TRACED)
    for _ in range(3 * PROFILED):
        core.step()
    waits = None
    if len(prompts) == 1:
        # The slot table must not be written meanwhile: room for what both traces may emit, and
        # for a draft behind it.
        step_to_room(core, 2 * PROFILED * 13)
        waits = run_without_waiting(core, PROFILED)
    traced = profile_rounds(core, PROFILED)
    abandon(core, ids)
    return {"waits_beside_the_read": waits, "profile": traced.summary()}, traced.csv()
