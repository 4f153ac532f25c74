"""Every picture that is drawn from raw records: `python -m aerie.bench.plots reports` draws all.

Each is stamped with the hash of what it was drawn from.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.record import read_json

ENGINES = ("engine_bench_cpu", "engine_bench_cpu_8k")
SUMMARY = "h200_baseline_summary.json"
PLANNER, PLAIN, FIXED, INK = "#c0392b", "#555555", "#b9c7d8", "#333333"
# Of the CPU's policies: two stand out, the others are what they are held against.
LINES = {"chain3": None, "chain5": None, "chain7": None, "tree16": None, "tree32": None,
         "tree60": None, "cast": "#8e44ad", "planner": PLANNER}  # fmt: skip
# Pixels depend on the plotting library's version, so freshness is told by the raw data's hash,
# kept in a text chunk of the file.
STAMP = "Raw-SHA256"


@dataclass(frozen=True)
class Plot:
    """A picture that `draw(record, path, stamp)` makes from the file `raw` of the same folder."""

    name: str
    raw: str
    draw: Callable[[dict[str, Any], Path, str], None]

    def is_stale(self, folder: Path) -> bool:
        """Whether it is absent or was drawn from other data; not where there is no data."""
        raw = folder / self.raw
        return raw.is_file() and stamp_of(folder / self.name) != _hash(raw)

    def redraw(self, folder: Path) -> None:
        """Draw and stamp."""
        raw = folder / self.raw
        self.draw(read_json(raw), folder / self.name, _hash(raw))


def _hash(raw: Path) -> str:
    return hashlib.sha256(raw.read_bytes()).hexdigest()


def stamp_of(path: Path) -> str:
    """The stamp of a picture; empty if it has none or does not exist."""
    if not path.is_file():
        return ""
    _, found, rest = path.read_bytes().partition(f"tEXt{STAMP}\0".encode())
    return rest[:64].decode("ascii", "replace") if found else ""


def draw_engine(record: dict[str, Any], path: Path, stamp: str = "") -> None:
    """Speed over plain decoding by batch size, one panel a context, and the planner's regret."""
    from matplotlib.figure import Figure

    places = sorted(record["planner"], key=lambda place: place["batch"])
    ratios = {
        (own["batch"], own["context"], own["policy"]): own["ratio_to_plain"]
        for own in record["points"]
    }
    contexts = sorted({place["context"] for place in places})
    figure = Figure(figsize=(4.6 * (len(contexts) + 1), 4))
    *shown, last = figure.subplots(1, len(contexts) + 1, squeeze=False)[0]
    for panel, context in zip(shown, contexts, strict=True):
        here = [place for place in places if place["context"] == context]
        batches = [place["batch"] for place in here]
        for name, colour in LINES.items():
            panel.plot(
                batches,
                [ratios[batch, context, name] for batch in batches],
                marker="o",
                color=colour,
                linewidth=2.5 if colour == PLANNER else 1,
                alpha=1.0 if colour else 0.6,
                label=name,
            )
        panel.axhline(1.0, color=PLAIN, linestyle="--", linewidth=1)
        panel.set(title=f"context {context}", xlabel="batch", ylabel="tokens/s over plain")
        last.plot(batches, [100 * place["regret"] for place in here], marker="o", label=context)
    shown[0].legend(fontsize=8)
    last.axhline(15, color=PLAIN, linestyle="--", linewidth=1)
    last.set(title="planner's regret", xlabel="batch", ylabel="% behind the oracle")
    last.legend(title="context", fontsize=8)
    for panel in (*shown, last):
        panel.set_xscale("log", base=2)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={STAMP: stamp})


def draw_planner(record: dict[str, Any], path: Path, stamp: str = "") -> None:
    """The planner beside the best fixed policy: two bars a point, by context and batch."""
    from matplotlib.figure import Figure

    places = sorted(
        (place for place in record["places"] if place["planner_to_plain"]),
        key=lambda place: (place["context"], place["batch"]),
    )
    keys = ("scenario", "batch", "context")
    speeds = {(*(own[key] for key in keys), own["policy"]): own for own in record["points"]}
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots()
    for index, place in enumerate(places):
        best = speeds[*(place[key] for key in keys), place["best_fixed"]]["ratio_to_plain"]
        own = place["planner_to_plain"]
        axes.bar(index - 0.2, best, 0.38, color=FIXED, label="" if index else "best fixed policy")
        axes.bar(index + 0.2, own["median"], 0.38, color=PLANNER, label="" if index else "planner")
        spread = [[own["median"] - own["low"]], [own["high"] - own["median"]]]
        axes.errorbar(index + 0.2, own["median"], spread, color=INK, linewidth=1, capsize=2)
        axes.text(index - 0.2, 0.08, place["best_fixed"], rotation=90, ha="center", fontsize=7)
    labels = [f"{place['batch']} x {place['context'] // 1024}K" for place in places]
    axes.set_xticks(range(len(places)), labels, fontsize=8)
    axes.axhline(1.0, color=INK, linewidth=0.8)
    axes.set_ylabel("tokens/s over plain decoding")
    axes.set_xlabel("requests x context; NVIDIA H200, 8B geometry, bf16, 90 % intervals")
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(path, dpi=120, metadata={STAMP: stamp})


PLOTS = (
    *(Plot(f"{stem}.png", f"{stem}.json", draw_engine) for stem in ENGINES),
    Plot("h200_planner.png", SUMMARY, draw_planner),
)


if __name__ == "__main__":
    for plot in PLOTS:
        plot.redraw(Path(sys.argv[1]))
