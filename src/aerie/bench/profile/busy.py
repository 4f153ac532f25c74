"""How busy a device was in decode time: `python -m aerie.bench.profile.busy reports`.

A trace slows the host, so rounds inside it stand further apart than rounds do. The kernels of one
traced round are therefore held against the round as it was timed without a profiler.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from aerie.bench.plots import TIMELINE
from aerie.bench.profile.trace import covered
from aerie.bench.record import open_rows


@dataclass(frozen=True)
class Busy:
    """One policy at one point; times of a round in microseconds."""

    policy: str
    context: int
    batch: int
    kernels_us: float  # time in which a kernel of the traced round ran
    graphs_us: float  # from its first kernel's start to its last one's end
    round_us: float  # timed without a profiler
    within_graphs: float  # share of the graphs' time
    of_round: float  # share of the round's time, timed or traced, whichever was longer


def busy_shares(folder: Path) -> list[Busy]:
    """Every policy and point of a folder of reports."""
    with open_rows(folder / TIMELINE, "rt") as file:
        rows = list(csv.DictReader(file))
    points = json.loads((folder / "profile_kernels.json").read_text(encoding="utf-8"))["points"]
    return [_busy(point, rows) for point in points]


def _busy(point: dict[str, object], rows: list[dict[str, str]]) -> Busy:
    names = ("policy", "context", "batch")
    own = [row for row in rows if all(row[name] == str(point[name]) for name in names)]
    spans = [(float(row["start_us"]), float(row["start_us"]) + float(row["us"])) for row in own]
    kernels = covered(spans)
    graphs = max(end for _, end in spans) - min(start for start, _ in spans)
    taken = 1e3 * float(str(point.get("round_mean_ms", point["round_ms"])))
    return Busy(
        str(point["policy"]),
        int(str(point["context"])),
        int(str(point["batch"])),
        round(kernels, 1),
        round(graphs, 1),
        round(taken, 1),
        round(kernels / graphs, 4),
        # A traced round may be slower than a timed one, and its kernels with it.
        round(kernels / max(taken, graphs), 4),
    )


if __name__ == "__main__":
    for found in busy_shares(Path(sys.argv[1])):
        print(json.dumps(asdict(found)))
