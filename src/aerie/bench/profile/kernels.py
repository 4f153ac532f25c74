"""Where the time and bytes of a round go: kernels, energy, modelled bytes, ranked hotspots."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aerie.bench.bytes import Traffic, round_traffic, total_bytes
from aerie.bench.profile.session import POLICIES, WARM_ROUNDS, Point, Session, release, room_at
from aerie.bench.provenance import spend
from aerie.bench.ranges import with_ranges
from aerie.bench.record import Origin, formatted, page, table
from aerie.bench.round.speed import Clocked, n_tokens_of, step_to_room
from aerie.bench.trace import Trace, trace_rounds
from aerie.config import GraphConfig

DIRECT_ROUNDS = 3
TIMES, BYTES = "cuda_kernel_times.csv", "cuda_bytes_per_token.csv"
HOTSPOTS = "hotspots_ranked.md"
COVERED = 0.70  # of a round's time the ranked hotspots must explain
N_TOP = 3
Row = dict[str, Any]
RANKS = {
    "rank": "{rank}",
    "by time": "{slow[0]}",
    "µs a round": "{slow[1]:.0f}",
    "share": "{slow[2]:.1%}",
    "by bytes": "{large[0]}",
    "MB a token": "{large[1]:.1f}",
    "share ": "{large[2]:.1%}",
}
BUSY_FLOOR = 0.95


@dataclass(frozen=True, eq=False)
class Profiled:
    """One policy at one point."""

    place: dict[str, Any]  # what rows name it by
    figures: dict[str, Any]  # JSON values
    trace: Trace
    traffic: list[Traffic]
    tokens_per_round: float  # of all requests together


def run_kernels(session: Session) -> dict[str, Any]:
    """Kernel times, bytes, hotspots, busy share and energy of every point."""
    ceilings, found = session.ceilings, list[Profiled]()
    for point in session.points:
        for policy in dict.fromkeys(("plain", session.policy)):
            found.append(profile_point(session, point, policy))
            print(found[-1].figures, flush=True)
            release()
        write_profile(session.out, found, session.origin("kernels"), ceilings.copy_gbps)
    covered = [hotspots(entry)[1] for entry in found]
    busy = min(entry.figures["busy_share"] for entry in found)
    return {
        "ceilings": asdict(ceilings),
        "points": [entry.figures for entry in found],
        "hotspots_cover": [round(share, 4) for share in covered],
        "least_busy_share": busy,
        "floors": {"hotspots": COVERED, "busy": BUSY_FLOOR},
        # Launch by launch, a CPU says nothing about a device that waits for its host.
        "ok": min(covered) >= COVERED and (session.is_rehearsal or busy >= BUSY_FLOOR),
    }


def profile_point(session: Session, point: Point, policy: str) -> Profiled:
    """Time, trace and weigh a policy; nothing of its engine stays: its memory is the next one's."""
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
    ms, mean_ms = statistics.median(clocked.wall), statistics.fmean(clocked.wall)
    n_bytes, per_round = total_bytes(traffic), clocked.emitted / len(clocked.wall)
    floor = n_bytes / session.ceilings.copy_gbps / 1e6
    place = {**vars(point), "policy": policy}
    figures = {
        **place,
        "round_ms": round(ms, 4),
        "floor_ms": round(floor, 4),
        "share_of_copy": round(floor / ms, 4),
        "tokens_per_round": round(per_round, 3),
        "tokens_per_second": round(1e3 * per_round / ms, 1),
        "bytes_per_round": round(n_bytes),
        "effective_bytes_per_token": round(n_bytes / per_round),
        "round_mean_ms": round(mean_ms, 4),
        # The kernels' busy time, from the trace, in rounds that were timed without a profiler.
        "busy_share": round(trace.busy_us / trace.n_rounds / (1e3 * mean_ms), 4),
        "busy_share_traced": round(trace.busy_share, 4),
        "idle_between_graphs_us": clocked.idle_us(),
        "traced_rounds": trace.n_rounds,
        "joules_per_token": spent.joules_per_token,
        "watts": spent.watts,
        "energy_seconds": round(spent.seconds, 3),
        "energy_tokens": spent.n_tokens,
        "ranges_us_direct": direct_ranges(session, point, policy) if policy != "plain" else {},
        "kind": {"times": "measured", "bytes": "modelled"},
    }
    return Profiled(place, figures, trace, traffic, per_round)


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


def write_profile(out: Path, found: Sequence[Profiled], origin: Origin, gbps: float) -> None:
    """Every file of the stage; `gbps` is the measured copy."""
    kernels: list[Row] = []
    moved: list[Row] = []
    ranges: list[Sequence[str]] = []
    for entry in found:
        place, per_round = entry.place, entry.tokens_per_round
        rows, n_bytes = entry.trace.rows("phase", "part", "kernel"), total_bytes(entry.traffic)
        total = sum(row["us_per_round"] for row in rows) or 1.0
        for row in rows:
            us = row["us_per_round"]
            shares = {"us_per_token": round(us / per_round, 3), "share": round(us / total, 5)}
            kernels.append({**place, **row, **shares, "kind": "measured"})
        for traffic in entry.traffic:
            moved.append(
                {
                    **place,
                    "phase": traffic.phase,
                    "part": traffic.part,
                    "what": traffic.what,
                    "bytes_per_round": round(traffic.n_bytes),
                    "bytes_per_token": round(traffic.n_bytes / per_round),
                    "share": round(traffic.n_bytes / n_bytes, 5),
                    "tokens_per_round": round(per_round, 3),
                    "kind": "modelled",
                }
            )
        where = "{context}x{batch}".format_map(place), place["policy"]
        direct = entry.figures["ranges_us_direct"]
        ranges += [(*where, name, f"{us:.1f}") for name, us in direct.items()]
    origin.write_csv(out / TIMES, kernels)
    origin.write_csv(out / BYTES, moved)
    made = page(
        "hotspots",
        points=[hotspot_section(entry, gbps) for entry in found],
        ranges=table(("point", "policy", "range", "µs a round"), ranges),
        origin=origin.lines(),
    )
    (out / HOTSPOTS).write_text(made, encoding="utf-8")


def hotspots(entry: Profiled) -> tuple[list[Row], float]:
    """The phases and parts with most time beside those with most bytes, and their coverage.

    Coverage is the share of the kernels' time that belongs to either list.
    """
    times = {key: us for key, (_, us) in entry.trace.by("phase", "part").items()}
    moved: dict[tuple[str, ...], float] = {}
    for traffic in entry.traffic:
        key = traffic.phase, traffic.part
        moved[key] = moved.get(key, 0.0) + traffic.n_bytes / entry.tokens_per_round
    by_bytes, by_time = sorted(moved, key=lambda key: -moved[key])[:N_TOP], list(times)[:N_TOP]
    total, all_bytes = sum(times.values()) or 1.0, sum(moved.values()) or 1.0
    rows = [
        {
            "rank": rank,
            "slow": (" ".join(slow), times[slow], times[slow] / total),
            "large": (" ".join(large), moved[large] / 1e6, moved[large] / all_bytes),
        }
        for rank, (slow, large) in enumerate(zip(by_time, by_bytes, strict=False), 1)
    ]
    return rows, sum(times.get(key, 0.0) for key in {*by_time, *by_bytes}) / total


def hotspot_section(entry: Profiled, gbps: float) -> str:
    """A section of the page."""
    (rows, share), trace = hotspots(entry), entry.trace
    kernels = list(trace.by("phase", "kernel").items())[:5]
    return page(
        "hotspot",
        entry.figures,
        copy=gbps,
        busy_us=trace.busy_us / trace.n_rounds,
        gigabytes=entry.figures["effective_bytes_per_token"] / 1e9,
        share=share,
        floor_share=COVERED,
        ranks=formatted(RANKS, rows),
        slowest="; ".join(f"`{key[1]}` in {key[0]} {us:.0f} µs" for key, (_, us) in kernels),
    )
