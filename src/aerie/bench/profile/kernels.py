"""Profiles a policy at an operating point: times, kernels, energy and modelled bytes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from aerie.bench.profile.bytes import Traffic, round_traffic, total_bytes
from aerie.bench.profile.ranges import with_ranges
from aerie.bench.profile.session import POLICIES, WARM_ROUNDS, Filled, Point, Session, room_at
from aerie.bench.profile.trace import Trace, trace_rounds
from aerie.bench.provenance import Spent, spend
from aerie.bench.round.setup import RoundSetup
from aerie.bench.round.speed import step_to_room
from aerie.config import GraphConfig
from aerie.engine.engine import EngineCore
from aerie.models.inflate.embed import LargePair
from aerie.tune.clock import DeviceClock, marked

DIRECT_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Profiled:
    """One policy at one point."""

    point: Point
    policy: str
    ms: float  # median of a round
    mean_ms: float
    idle_us: float | None  # of a round, between one graph's end and the next one's start
    tokens_per_round: float
    trace: Trace
    traffic: list[Traffic]
    spent: Spent
    ranges_us: dict[str, float]  # of a round called function by function

    @property
    def busy_share(self) -> float:
        """The kernels' busy time, from the trace, in rounds that were timed without a profiler."""
        return self.trace.busy_us / self.trace.n_rounds / (1e3 * self.mean_ms)

    @property
    def bytes_per_token(self) -> float:
        """All bytes of a round over the tokens it emitted."""
        return total_bytes(self.traffic) / self.tokens_per_round

    def summary(self, gbps: float) -> dict[str, Any]:
        """JSON values; `gbps` is the measured copy."""
        n_bytes = total_bytes(self.traffic)
        floor = n_bytes / gbps / 1e6
        return {
            "policy": self.policy,
            "context": self.point.context,
            "batch": self.point.batch,
            "round_ms": round(self.ms, 4),
            "floor_ms": round(floor, 4),
            "share_of_copy": round(floor / self.ms, 4),
            "tokens_per_round": round(self.tokens_per_round, 3),
            "tokens_per_second": round(1e3 * self.tokens_per_round / self.ms, 1),
            "bytes_per_round": round(n_bytes),
            "effective_bytes_per_token": round(self.bytes_per_token),
            "round_mean_ms": round(self.mean_ms, 4),
            "busy_share": round(self.busy_share, 4),
            "busy_share_traced": round(self.trace.busy_share, 4),
            "idle_between_graphs_us": self.idle_us,
            "traced_rounds": self.trace.n_rounds,
            "joules_per_token": self.spent.joules_per_token,
            "watts": self.spent.watts,
            "energy_seconds": round(self.spent.seconds, 3),
            "energy_tokens": self.spent.n_tokens,
            "ranges_us_direct": self.ranges_us,
            "kind": {"times": "measured", "bytes": "modelled"},
        }


def profile_point(session: Session, filled: Filled, policy: str) -> Profiled:
    """Time, trace and weigh a policy; the prompts are read already."""
    point, shape = filled.point, POLICIES[policy]
    setup, pair, sizes = session.setup, session.pair, session.sizes
    core = setup.core(pair, shape, room_at(point, sizes.new_tokens))
    filled.open(core, [sizes.new_tokens] * point.batch)
    for _ in range(WARM_ROUNDS):
        core.step()
    times, n_tokens = [], 0
    for _ in range(sizes.timed):
        begin = time.perf_counter()
        n_tokens += emitted(core)
        times.append(1e3 * (time.perf_counter() - begin))
    idle = idle_between_graphs(core, sizes.traced)
    step_to_room(core, 8 * 2 * sizes.traced)
    trace = trace_rounds(core, sizes.traced)
    spent = spend(session.meter, sizes.energy_seconds, lambda: emitted(core))
    load = point.load(shape, GraphConfig(), point.batch)
    return Profiled(
        point,
        policy,
        statistics.median(times),
        statistics.fmean(times),
        idle,
        n_tokens / len(times),
        trace,
        round_traffic(pair, shape, load),
        spent,
        direct_ranges(setup, pair, filled, policy) if shape.method != "none" else {},
    )


def direct_ranges(
    setup: RoundSetup, pair: LargePair, filled: Filled, policy: str
) -> dict[str, float]:
    """Device time of every named range, from rounds that are called one by one."""
    n_new = 8 * 4 * DIRECT_ROUNDS
    direct = replace(setup, engine="direct")
    core = with_ranges(direct.core(pair, POLICIES[policy], room_at(filled.point, n_new)))
    filled.open(core, [n_new] * filled.point.batch)
    for _ in range(DIRECT_ROUNDS):
        core.step()
    return trace_rounds(core, DIRECT_ROUNDS).ranges_us


def idle_between_graphs(core: EngineCore, n_rounds: int) -> float | None:
    """Microseconds a round in which no graph ran, by events on the device; None without one."""
    if core.memory.table.device.type != "cuda":
        return None
    clock = DeviceClock()
    with marked(core.launcher.graphs, clock) as spans:
        for _ in range(n_rounds):
            core.step()
    torch.cuda.synchronize()
    gaps = [clock.seconds(a[1], b[0]) for (_, a), (_, b) in pairwise(spans)]
    return round(1e6 * sum(gaps) / n_rounds, 1)


def emitted(core: EngineCore) -> int:
    """Tokens of one step."""
    return sum(len(getattr(event, "tokens", ())) for event in core.step())
