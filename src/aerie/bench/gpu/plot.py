"""A picture of the planner's matrix: over plain decoding, beside the best fixed policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PLANNER, FIXED, INK = "#c0392b", "#b9c7d8", "#333333"


def draw_planner(summary: dict[str, Any], path: Path) -> None:
    """One pair of bars for each point, in the order of context and batch."""
    from matplotlib.figure import Figure

    places = sorted(
        (place for place in summary["places"] if place["planner_to_plain"]),
        key=lambda place: (place["context"], place["batch"]),
    )
    speeds = {
        (point["scenario"], point["batch"], point["context"], point["policy"]): point
        for point in summary["points"]
    }
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots()
    for index, place in enumerate(places):
        key = (place["scenario"], place["batch"], place["context"])
        best = speeds[*key, place["best_fixed"]]["ratio_to_plain"]
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
    figure.savefig(path, dpi=120)
