"""Draws a profile's raw CSV: `python -m aerie.bench.profile.plot reports`, on any machine."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from aerie.bench.profile.report import ROOFLINE, TIMELINE
from aerie.bench.record import open_rows

COLOURS = {
    "linear": "#33658a",
    "attention": "#c8553d",
    "norm": "#8a9a5b",
    "rotary and KV write": "#d9a441",
    "activation": "#7b6d8d",
    "sampling": "#4f9d9d",
    "bookkeeping": "#555555",
}
MARKERS = {"plain": "o", "verify": "s", "draft": "^"}


def main() -> None:
    """Both plots of a folder of reports."""
    folder = Path(sys.argv[1])
    for path in (draw_roofline(folder), draw_timeline(folder)):
        print(path)


def draw_roofline(folder: Path) -> Path:
    """Achieved rate over intensity of every phase and part, under the two measured roofs."""
    plt = _pyplot()
    rows = [row for row in _read(folder / ROOFLINE) if float(row["flops_per_round"])]
    copy, peak = float(rows[0]["copy_gbps"]), float(rows[0]["matmul_tflops"])
    figure, axes = plt.subplots(figsize=(8, 5))
    ridge = 1e3 * peak / copy
    axes.plot([0.1, ridge, 1e4], [1e-4 * copy, peak, peak], color="black", linewidth=1)
    axes.annotate(f"{copy:.0f} GB/s, a copy", (0.2, 2.5e-4 * copy), rotation=35, fontsize=8)
    axes.annotate(f"{peak:.0f} TFLOP/s, a product", (ridge, 1.1 * peak), fontsize=8)
    for row in rows:
        place = float(row["flop_per_byte"]), float(row["tflops"])
        colour, marker = COLOURS[row["part"]], MARKERS.get(row["phase"], "x")
        axes.scatter(*place, color=colour, marker=marker, s=36)
        # Products lie along the roof from below, so their names go above it.
        side = (-4, 6, "right") if row["part"] == "linear" else (6, -8, "left")
        label = f"{row['policy']} {row['context']}x{row['batch']}"
        axes.annotate(label, place, fontsize=6, xytext=side[:2], textcoords="offset points",
                      ha=side[2])  # fmt: skip
    kinds = dict.fromkeys((row["phase"], row["part"]) for row in rows)
    for phase, part in kinds:
        axes.scatter([], [], color=COLOURS[part], marker=MARKERS.get(phase, "x"),
                     label=f"{phase}: {part}")  # fmt: skip
    axes.legend(fontsize=7, loc="lower right")
    axes.set(xscale="log", yscale="log", xlabel="operations per modelled byte")
    axes.set_ylabel("TFLOP/s, measured time")
    axes.set_title(f"Roofline, {rows[0]['device']}, commit {rows[0]['commit'][:7]}", fontsize=9)
    return _save(figure, folder / "cuda_roofline.png")


def draw_timeline(folder: Path) -> Path:
    """The kernels of one round of every point and policy, one strip each."""
    plt = _pyplot()
    rows = _read(folder / TIMELINE)
    strips: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        strips.setdefault(f"{row['policy']}\n{row['context']}x{row['batch']}", []).append(row)
    figure, axes = plt.subplots(figsize=(12, 1.1 * len(strips) + 1.2))
    for height, kernels in enumerate(strips.values()):
        for part, colour in COLOURS.items():
            own = [row for row in kernels if row["part"] == part]
            spans = [(float(row["start_us"]), float(row["us"])) for row in own]
            axes.broken_barh(spans, (height - 0.35, 0.7), color=colour, linewidth=0)
        turn = next((row for row in kernels if row["phase"] == "draft"), None)
        if turn is not None:
            axes.vlines(float(turn["start_us"]), height - 0.45, height + 0.45, color="black")
    axes.set_yticks(range(len(strips)), list(strips), fontsize=7)
    axes.set_xlabel("µs from the round's first kernel; the line is where drafting begins")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    axes.legend(handles, COLOURS, ncols=len(COLOURS), fontsize=7, loc="upper center",
                bbox_to_anchor=(0.5, -0.12))  # fmt: skip
    figure.suptitle(f"One round, {rows[0]['device']}, commit {rows[0]['commit'][:7]}", fontsize=9)
    return _save(figure, folder / "cuda_timeline.png")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _read(path: Path) -> list[dict[str, str]]:
    with open_rows(path, "rt") as file:
        return list(csv.DictReader(file))


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    return path


if __name__ == "__main__":
    main()
