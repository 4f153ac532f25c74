"""Files of a profile: kernel times, bytes per token, one round's timeline, hotspots, roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerie.bench.ceilings import Ceilings
from aerie.bench.plots import ROOFLINE, TIMELINE
from aerie.bench.profile.bytes import total_bytes
from aerie.bench.profile.kernels import Profiled
from aerie.bench.profile.trace import covered
from aerie.bench.record import Origin, formatted, page, read_csv, read_json, table

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


def write_profile(out: Path, found: Sequence[Profiled], origin: Origin, ceilings: Ceilings) -> None:
    """Every file of the stage."""
    origin.write_csv(out / TIMES, [row for entry in found for row in kernel_rows(entry)])
    origin.write_csv(out / BYTES, [row for entry in found for row in byte_rows(entry)])
    origin.write_csv(out / TIMELINE, [row for entry in found for row in timeline_rows(entry)])
    roof = [row for entry in found for row in roofline_rows(entry, ceilings)]
    origin.write_csv(out / ROOFLINE, roof)
    ranges = [
        (entry.point.name, entry.policy, name, f"{us:.1f}")
        for entry in found
        for name, us in entry.ranges_us.items()
    ]
    made = page(
        "hotspots",
        points=[hotspot_section(entry, ceilings) for entry in found],
        ranges=table(("point", "policy", "range", "µs a round"), ranges),
        origin=origin.lines(),
    )
    (out / HOTSPOTS).write_text(made, encoding="utf-8")


def _where(entry: Profiled) -> Row:
    return {
        "context": entry.point.context,
        "batch": entry.point.batch,
        "policy": entry.policy,
    }


def kernel_rows(entry: Profiled) -> list[Row]:
    """One row per kernel and phase, slowest first."""
    total = sum(us for _, us in entry.trace.by("phase").values())
    return [
        {
            **_where(entry),
            "phase": phase,
            "part": part,
            "kernel": kernel,
            "calls_per_round": round(calls, 3),
            "us_per_round": round(us, 3),
            "us_per_token": round(us / entry.tokens_per_round, 3),
            "share": round(us / total, 5),
            "kind": "measured",
        }
        for (phase, part, kernel), (calls, us) in entry.trace.by("phase", "part", "kernel").items()
    ]


def byte_rows(entry: Profiled) -> list[Row]:
    """One row per phase, part and kind of bytes, most first."""
    total = total_bytes(entry.traffic)
    return [
        {
            **_where(entry),
            "phase": traffic.phase,
            "part": traffic.part,
            "what": traffic.what,
            "bytes_per_round": round(traffic.n_bytes),
            "bytes_per_token": round(traffic.n_bytes / entry.tokens_per_round),
            "share": round(traffic.n_bytes / total, 5),
            "tokens_per_round": round(entry.tokens_per_round, 3),
            "kind": "modelled",
        }
        for traffic in entry.traffic
    ]


def timeline_rows(entry: Profiled) -> list[Row]:
    """Kernels of one round from its first one on."""
    kernels = entry.trace.one_round()
    first = kernels[0].start if kernels else 0.0
    return [
        {
            **_where(entry),
            "phase": kernel.phase,
            "part": kernel.part,
            "kernel": kernel.kernel,
            "start_us": round(kernel.start - first, 3),
            "us": round(kernel.us, 3),
            "kind": "measured",
        }
        for kernel in kernels
    ]


def roofline_rows(entry: Profiled, ceilings: Ceilings) -> list[Row]:
    """Measured time of each phase and part beside its modelled bytes and operations."""
    rows = []
    for (phase, part), (_, us) in entry.trace.by("phase", "part").items():
        own = [t for t in entry.traffic if (t.phase, t.part) == (phase, part)]
        n_bytes, flops = total_bytes(own), sum(t.flops for t in own)
        if n_bytes and us:
            rows.append(
                {
                    **_where(entry),
                    "phase": phase,
                    "part": part,
                    "us_per_round": round(us, 3),
                    "bytes_per_round": round(n_bytes),
                    "flops_per_round": round(flops),
                    "flop_per_byte": round(flops / n_bytes, 4),
                    "gbps": round(n_bytes / us / 1e3, 1),
                    "tflops": round(flops / us / 1e6, 3),
                    "copy_gbps": round(ceilings.copy_gbps, 1),
                    "matmul_tflops": round(ceilings.matmul_tflops, 1),
                    "kind": "measured time, modelled bytes",
                }
            )
    return rows


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


def hotspot_section(entry: Profiled, ceilings: Ceilings) -> str:
    """A section of the page."""
    (rows, share), trace = hotspots(entry), entry.trace
    kernels = list(trace.by("phase", "kernel").items())[:5]
    return page(
        "hotspot",
        policy=entry.policy,
        place=entry.point.name,
        ms=entry.ms,
        tokens=entry.tokens_per_round,
        floor=total_bytes(entry.traffic) / ceilings.copy_gbps / 1e6,
        copy=ceilings.copy_gbps,
        busy=entry.busy_share,
        busy_us=trace.busy_us / trace.n_rounds,
        traced=trace.busy_share,
        idle_us=entry.idle_us,
        gigabytes=entry.bytes_per_token / 1e9,
        share=share,
        floor_share=COVERED,
        ranks=formatted(RANKS, rows),
        slowest="; ".join(f"`{key[1]}` in {key[0]} {us:.0f} µs" for key, (_, us) in kernels),
    )


def busy_shares(folder: Path) -> list[Row]:
    """How busy the device was in decode time, for every policy and point of a folder of reports.

    A trace slows the host, so rounds inside it stand further apart than rounds do. The kernels of
    one traced round are therefore held against the round as it was timed without a profiler.
    """
    rows = read_csv(folder / TIMELINE)
    return [_busy(point, rows) for point in read_json(folder / "profile_kernels.json")["points"]]


def _busy(point: Row, rows: list[dict[str, str]]) -> Row:
    place = {name: point[name] for name in ("policy", "context", "batch")}
    own = [row for row in rows if all(row[name] == str(value) for name, value in place.items())]
    starts = [float(row["start_us"]) for row in own]
    spans = [(at, at + float(row["us"])) for at, row in zip(starts, own, strict=True)]
    # Time in which a kernel ran, and from the first one's start to the last one's end.
    kernels, graphs = covered(spans), max(end for _, end in spans) - min(starts)
    taken = 1e3 * float(point.get("round_mean_ms") or point["round_ms"])
    return {
        **place,
        "kernels_us": round(kernels, 1),
        "graphs_us": round(graphs, 1),
        "round_us": round(taken, 1),
        "within_graphs": round(kernels / graphs, 4),
        # A traced round may be slower than a timed one, and its kernels with it.
        "of_round": round(kernels / max(taken, graphs), 4),
    }
