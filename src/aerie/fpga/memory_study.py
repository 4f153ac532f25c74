"""How the draft's streams fare on the card's memory by stripe size, and which layout is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from aerie.fpga.page import written
from aerie.perf.hbm import Access, Hbm, published, serve

STRIPES = (256, 512, 1024, 4096)
MISSES = (30.0, 45.0, 60.0)  # ns; not published for this card, so the answer must hold for all
SPACE = 1 << 30
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Stream:
    """A kind of access of a draft round, and its share of the round's bytes in the final design."""

    name: str
    accesses: tuple[Access, ...]
    share: float


def streams() -> tuple[Stream, ...]:
    """Weights in a row; rows of candidates, keys and values from anywhere.

    Shares are those of the counted bytes at eagle4's sizes and 1K of context, rounded against us.
    """
    rng = np.random.default_rng(0)

    def scattered(n: int, size: int) -> tuple[Access, ...]:
        return tuple(Access(int(at) * size, size) for at in rng.integers(0, SPACE // size, n))

    return (
        Stream("weights, in order", (Access(0, 1 << 21),), 0.92),
        Stream("head rows of candidates, 8 KB", scattered(256, 8192), 0.008),
        Stream("keys and values, 8 KB", scattered(256, 8192), 0.07),
        Stream("slots and tables, 64 B", scattered(8192, 64), 0.002),
    )


def study(hbm: Hbm) -> list[dict[str, Any]]:
    """Every stream, stripe and price of a row miss."""
    found = []
    for miss, stripe, stream in product(MISSES, STRIPES, streams()):
        gbps = serve(replace(hbm, miss_ns=miss), stream.accesses, stripe).gbps()
        found.append(
            {
                "stream": stream.name,
                "stripe": stripe,
                "miss_ns": miss,
                "gbps": round(gbps, 1),
                "of_peak": round(gbps / hbm.peak_gbps, 4),
                "kind": "modelled",
            }
        )
    return found


def effective(rows: Sequence[Row], stripe: int, miss_ns: float, peak: float) -> float:
    """GB/s over a whole draft round: shares of bytes over their speeds."""
    share = {stream.name: stream.share for stream in streams()}
    own = [row for row in rows if (row["stripe"], row["miss_ns"]) == (stripe, miss_ns)]
    return float(1 / sum(share[row["stream"]] / min(row["gbps"], peak) for row in own))


def chosen(rows: Sequence[Row], peak: float) -> tuple[int, dict[float, float]]:
    """The stripe whose worst case is best, and its speed by price."""
    by_stripe = {
        stripe: {miss: effective(rows, stripe, miss, peak) for miss in MISSES} for stripe in STRIPES
    }
    best = max(STRIPES, key=lambda stripe: min(by_stripe[stripe].values()))
    return best, by_stripe[best]


def record(hbm: Hbm, origin: Mapping[str, Any]) -> dict[str, Any]:
    """What the race reads."""
    rows = study(hbm)
    stripe, speeds = chosen(rows, hbm.peak_gbps)
    model, paper = published()
    return {
        "kind": "modelled",
        "published": {"model_gbps": round(model, 1), "paper_gbps": paper},
        "stripe": stripe,
        "effective_gbps": {str(miss): round(speed, 1) for miss, speed in speeds.items()},
        "peak_gbps": hbm.peak_gbps,
        "rows": rows,
        "provenance": dict(origin),
    }


def page(found: Mapping[str, Any]) -> str:
    """The table."""
    lines = [
        f"| {row['stream']} | {row['stripe']} | {row['miss_ns']:.0f} | {row['gbps']:.0f}"
        f" | {100 * row['of_peak']:.1f} % |"
        for row in found["rows"]
    ]
    check, speeds = found["published"], found["effective_gbps"]
    said = ", ".join(f"{speed:.0f} GB/s at {miss} ns" for miss, speed in speeds.items())
    tail = (
        f"\n\nThe paper's card: {check['model_gbps']:.1f} GB/s modelled,"
        f" {check['paper_gbps']:.0f} measured. Chosen: stripes of {found['stripe']} bytes;"
        f" a draft round then moves {said}, of {found['peak_gbps']:.0f} peak."
    )
    return written("memory", lines, found, tail)
