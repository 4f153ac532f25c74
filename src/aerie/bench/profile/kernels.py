"""Profiles a policy at an operating point: times, kernels, energy and modelled bytes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from aerie.bench.bytes import Traffic, round_traffic, total_bytes
from aerie.bench.profile.session import POLICIES, WARM_ROUNDS, Point, Session, room_at
from aerie.bench.provenance import Spent, spend
from aerie.bench.ranges import with_ranges
from aerie.bench.round.speed import Clocked, n_tokens_of, step_to_room
from aerie.bench.trace import Trace, trace_rounds
from aerie.config import GraphConfig

DIRECT_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Profiled:
    """One policy at one point."""

    point: Point
    policy: str
    clocked: Clocked
    trace: Trace
    traffic: list[Traffic]
    spent: Spent
    ranges_us: dict[str, float]  # of a round called function by function

    @property
    def ms(self) -> float:
        """Median of a round."""
        return statistics.median(self.clocked.wall)

    @property
    def tokens_per_round(self) -> float:
        """Of all requests together."""
        return self.clocked.emitted / len(self.clocked.wall)

    @property
    def busy_share(self) -> float:
        """The kernels' busy time, from the trace, in rounds that were timed without a profiler."""
        return (
            self.trace.busy_us / self.trace.n_rounds / (1e3 * statistics.fmean(self.clocked.wall))
        )

    @property
    def n_bytes(self) -> float:
        """All bytes of a round."""
        return total_bytes(self.traffic)

    @property
    def bytes_per_token(self) -> float:
        """The same over the tokens that it emitted."""
        return self.n_bytes / self.tokens_per_round

    @property
    def place(self) -> dict[str, Any]:
        """What rows name it by."""
        return {**vars(self.point), "policy": self.policy}

    def summary(self, gbps: float) -> dict[str, Any]:
        """JSON values; `gbps` is the measured copy."""
        floor = self.n_bytes / gbps / 1e6
        return {
            **self.place,
            "round_ms": round(self.ms, 4),
            "floor_ms": round(floor, 4),
            "share_of_copy": round(floor / self.ms, 4),
            "tokens_per_round": round(self.tokens_per_round, 3),
            "tokens_per_second": round(1e3 * self.tokens_per_round / self.ms, 1),
            "bytes_per_round": round(self.n_bytes),
            "effective_bytes_per_token": round(self.bytes_per_token),
            "round_mean_ms": round(statistics.fmean(self.clocked.wall), 4),
            "busy_share": round(self.busy_share, 4),
            "busy_share_traced": round(self.trace.busy_share, 4),
            "idle_between_graphs_us": self.clocked.idle_us(),
            "traced_rounds": self.trace.n_rounds,
            "joules_per_token": self.spent.joules_per_token,
            "watts": self.spent.watts,
            "energy_seconds": round(self.spent.seconds, 3),
            "energy_tokens": self.spent.n_tokens,
            "ranges_us_direct": self.ranges_us,
            "kind": {"times": "measured", "bytes": "modelled"},
        }


def profile_point(session: Session, point: Point, policy: str) -> Profiled:
    """Time, trace and weigh a policy."""
    shape, sizes = POLICIES[policy], session.sizes
    core = session.setup.core(session.pair, shape, room_at(point, sizes.new_tokens))
    point.open(core, [sizes.new_tokens] * point.batch)
    for _ in range(WARM_ROUNDS):
        core.step()
    clocked = Clocked(core)
    clocked.block(sizes.timed)
    step_to_room(core, 8 * 2 * sizes.traced)
    trace = trace_rounds(core, sizes.traced)
    spent = spend(session.meter, sizes.energy_seconds, lambda: n_tokens_of(core.step()))
    traffic = round_traffic(session.pair, shape, point.load(shape, GraphConfig(), point.batch))
    ranges = direct_ranges(session, point, policy) if shape.method != "none" else {}
    return Profiled(point, policy, clocked, trace, traffic, spent, ranges)


def direct_ranges(session: Session, point: Point, policy: str) -> dict[str, float]:
    """Device time of every named range, from rounds that are called one by one."""
    n_new = 8 * 4 * DIRECT_ROUNDS
    direct = replace(session.setup, engine="direct")
    made = direct.core(session.pair, POLICIES[policy], room_at(point, n_new))
    core = with_ranges(made)
    point.open(core, [n_new] * point.batch)
    for _ in range(DIRECT_ROUNDS):
        core.step()
    return trace_rounds(core, DIRECT_ROUNDS).ranges_us
