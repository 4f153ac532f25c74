"""Files of a profile: kernel times, bytes per token, and the page of hotspots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerie.bench.profile.kernels import Profiled
from aerie.bench.record import Origin, formatted, page, table

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


def write_profile(out: Path, found: Sequence[Profiled], origin: Origin, gbps: float) -> None:
    """Every file of the stage; `gbps` is the measured copy."""
    origin.write_csv(out / TIMES, [row for entry in found for row in kernel_rows(entry)])
    origin.write_csv(out / BYTES, [row for entry in found for row in byte_rows(entry)])
    ranges = [
        (entry.point.name, entry.policy, name, f"{us:.1f}")
        for entry in found
        for name, us in entry.ranges_us.items()
    ]
    made = page(
        "hotspots",
        points=[hotspot_section(entry, gbps) for entry in found],
        ranges=table(("point", "policy", "range", "µs a round"), ranges),
        origin=origin.lines(),
    )
    (out / HOTSPOTS).write_text(made, encoding="utf-8")


def kernel_rows(entry: Profiled) -> list[Row]:
    """One row per kernel and phase, slowest first."""
    rows = entry.trace.rows("phase", "part", "kernel")
    total = sum(row["us_per_round"] for row in rows) or 1.0
    return [
        {
            **entry.place,
            **row,
            "us_per_token": round(row["us_per_round"] / entry.tokens_per_round, 3),
            "share": round(row["us_per_round"] / total, 5),
            "kind": "measured",
        }
        for row in rows
    ]


def byte_rows(entry: Profiled) -> list[Row]:
    """One row per phase, part and kind of bytes, most first."""
    return [
        {
            **entry.place,
            "phase": traffic.phase,
            "part": traffic.part,
            "what": traffic.what,
            "bytes_per_round": round(traffic.n_bytes),
            "bytes_per_token": round(traffic.n_bytes / entry.tokens_per_round),
            "share": round(traffic.n_bytes / entry.n_bytes, 5),
            "tokens_per_round": round(entry.tokens_per_round, 3),
            "kind": "modelled",
        }
        for traffic in entry.traffic
    ]


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
        entry=entry,
        floor=entry.n_bytes / gbps / 1e6,
        copy=gbps,
        busy_us=trace.busy_us / trace.n_rounds,
        idle_us=entry.clocked.idle_us(),
        gigabytes=entry.bytes_per_token / 1e9,
        share=share,
        floor_share=COVERED,
        ranks=formatted(RANKS, rows),
        slowest="; ".join(f"`{key[1]}` in {key[0]} {us:.0f} µs" for key, (_, us) in kernels),
    )
