"""Files of a profile: kernel times, bytes per token, one round's timeline, hotspots, roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerie.bench.plots import ROOFLINE, TIMELINE
from aerie.bench.profile.bytes import total_bytes
from aerie.bench.profile.kernels import Profiled
from aerie.bench.profile.session import Ceilings
from aerie.bench.record import Origin, table

TIMES, BYTES = "cuda_kernel_times.csv", "cuda_bytes_per_token.csv"
HOTSPOTS = "hotspots_ranked.md"
COVERED = 0.70  # of a round's time the ranked hotspots must explain
N_TOP = 3
BUSY_FLOOR = 0.95

Row = dict[str, Any]


def write_profile(out: Path, found: Sequence[Profiled], origin: Origin, ceilings: Ceilings) -> None:
    """Every file of the stage."""
    origin.write_csv(out / TIMES, [row for entry in found for row in kernel_rows(entry)])
    origin.write_csv(out / BYTES, [row for entry in found for row in byte_rows(entry)])
    origin.write_csv(out / TIMELINE, [row for entry in found for row in timeline_rows(entry)])
    roof = [row for entry in found for row in roofline_rows(entry, ceilings)]
    origin.write_csv(out / ROOFLINE, roof)
    lines = [line for entry in found for line in hotspot_lines(entry, ceilings)]
    page = [*TITLE, *lines, *RANGES, *_range_table(found), "", *origin.lines()]
    (out / HOTSPOTS).write_text("\n".join(page) + "\n", encoding="utf-8")


TITLE = (
    "# Where a round's time and bytes go",
    "",
    "Times are measured (kernels of traced captured rounds, torch's profiler; while two run, the"
    " time is the earlier one's); bytes are modelled"
    " (`src/aerie/bench/profile/bytes.py`: weights and KV once a pass, every tensor of a layer"
    " written and read once). Raw rows: `cuda_kernel_times.csv`, `cuda_bytes_per_token.csv`.",
    "",
)
RANGES = (
    "## NVTX ranges, rounds called one by one",
    "",
    "Ranges are host marks, so inside a captured graph they exist at capture time only. Device"
    " microseconds of a round that is called function by function, first kernel to last of each"
    " range, gaps between launches included:",
    "",
)


def kernel_rows(entry: Profiled) -> list[Row]:
    """One row per kernel and phase, slowest first."""
    total = sum(us for _, us in entry.trace.by("phase").values())
    per_token = entry.tokens_per_round
    return [
        {
            **_where(entry),
            "phase": phase,
            "part": part,
            "kernel": kernel,
            "calls_per_round": round(calls, 3),
            "us_per_round": round(us, 3),
            "us_per_token": round(us / per_token, 3),
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
    times = entry.trace.by("phase", "part")
    rows = []
    for (phase, part), (_, us) in times.items():
        own = [t for t in entry.traffic if (t.phase, t.part) == (phase, part)]
        n_bytes, flops = total_bytes(own), sum(t.flops for t in own)
        if not n_bytes or not us:
            continue
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


def hotspots(entry: Profiled) -> tuple[list[Row], list[Row], float]:
    """The three phases and parts with most time, the three with most bytes, and their coverage.

    Coverage is the share of the kernels' time that belongs to either list.
    """
    times = {key: us for key, (_, us) in entry.trace.by("phase", "part").items()}
    moved: dict[tuple[str, ...], float] = {}
    for traffic in entry.traffic:
        key = traffic.phase, traffic.part
        moved[key] = moved.get(key, 0.0) + traffic.n_bytes
    by_bytes = sorted(moved, key=lambda key: -moved[key])[:N_TOP]
    by_time = list(times)[:N_TOP]
    total, all_bytes = sum(times.values()) or 1.0, sum(moved.values()) or 1.0
    slow = [{"what": " ".join(k), "us": times[k], "share": times[k] / total} for k in by_time]
    large = [
        {"what": " ".join(k), "bytes": moved[k], "share": moved[k] / all_bytes} for k in by_bytes
    ]
    covered = sum(times.get(key, 0.0) for key in {*by_time, *by_bytes}) / total
    return slow, large, covered


def hotspot_lines(entry: Profiled, ceilings: Ceilings) -> list[str]:
    """A section of the page."""
    slow, large, share = hotspots(entry)
    tokens, trace = entry.tokens_per_round, entry.trace
    floor = total_bytes(entry.traffic) / ceilings.copy_gbps / 1e6
    kernels = list(entry.trace.by("phase", "kernel").items())[:5]
    return [
        f"## {entry.policy} at {entry.point.name}",
        "",
        f"A round takes {entry.ms:.3f} ms and emits {tokens:.2f} tokens; its bytes take"
        f" {floor:.3f} ms at the copy's {ceilings.copy_gbps:.0f} GB/s. The device is busy"
        f" {entry.busy_share:.1%} of that time ({trace.busy_us / trace.n_rounds:.0f} µs of a traced"
        f" round; in the trace itself, which slows the host, {trace.busy_share:.1%}; between graphs"
        f" it idles {entry.idle_us} µs a round by its own clock). Effective bytes"
        f" per token {entry.bytes_per_token / 1e9:.3f} GB. The hotspots below are {share:.1%} of"
        f" the kernels' time (floor {COVERED:.0%}).",
        "",
        *table(
            ("rank", "by time", "µs a round", "share", "by bytes", "MB a token", "share"),
            [
                (
                    rank,
                    a["what"],
                    f"{a['us']:.0f}",
                    f"{a['share']:.1%}",
                    b["what"],
                    f"{b['bytes'] / tokens / 1e6:.1f}",
                    f"{b['share']:.1%}",
                )
                for rank, (a, b) in enumerate(zip(slow, large, strict=False), 1)
            ],
        ),
        "",
        "Slowest kernels: "
        + "; ".join(f"`{key[1]}` in {key[0]} {us:.0f} µs" for key, (_, us) in kernels)
        + ".",
        "",
    ]


def _range_table(found: Sequence[Profiled]) -> list[str]:
    rows = [
        (entry.point.name, entry.policy, name, f"{us:.1f}")
        for entry in found
        for name, us in entry.ranges_us.items()
    ]
    return table(("point", "policy", "range", "µs a round"), rows)


def _where(entry: Profiled) -> Row:
    return {
        "context": entry.point.context,
        "batch": entry.point.batch,
        "policy": entry.policy,
    }
