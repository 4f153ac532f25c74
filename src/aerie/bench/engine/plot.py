"""Plots and raw rows of `aerie bench engine`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from aerie.bench.engine.contract import FIXED, PLAIN, PLANNER
from aerie.bench.engine.summary import Place, Point
from aerie.bench.record import open_rows

COLOURS = {PLANNER: "#c0392b", PLAIN: "#555555", "cast": "#8e44ad"}


def write_points(places: Sequence[Place], path: Path) -> None:
    """One row per policy and place."""
    _write([asdict(point) for place in places for point in place.points], path)


def write_runs(places: Sequence[Place], origin: Mapping[str, object], path: Path) -> None:
    """One row per run, as it was timed, with where it comes from."""
    _write([{**asdict(run), **origin} for place in places for run in place.runs], path)


def _write(rows: list[dict[str, object]], path: Path) -> None:
    with open_rows(path, "wt") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def draw(places: Sequence[Place], path: Path) -> None:
    """Speed over plain decoding by batch size, one panel a context, and the planner's regret."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    contexts = sorted({place.context for place in places})
    figure, panels = pyplot.subplots(
        1, len(contexts) + 1, figsize=(4.6 * (len(contexts) + 1), 4), squeeze=False
    )
    for panel, context in zip(panels[0], contexts, strict=False):
        here = sorted((p for p in places if p.context == context), key=lambda p: p.batch)
        for name in (*FIXED, "cast", PLANNER):
            points = [_find(place, name) for place in here]
            panel.plot(
                [point.batch for point in points],
                [point.ratio_to_plain for point in points],
                marker="o",
                color=COLOURS.get(name),
                linewidth=2.5 if name == PLANNER else 1,
                alpha=1.0 if name in COLOURS else 0.6,
                label=name,
            )
        panel.axhline(1.0, color=COLOURS[PLAIN], linestyle="--", linewidth=1)
        panel.set(title=f"context {context}", xlabel="batch", ylabel="tokens/s over plain")
        panel.set_xscale("log", base=2)
    panels[0][0].legend(fontsize=8)
    for context in contexts:
        here = sorted((p for p in places if p.context == context), key=lambda p: p.batch)
        panels[0][-1].plot(
            [p.batch for p in here], [100 * p.regret for p in here], marker="o", label=str(context)
        )
    panels[0][-1].axhline(15, color="#555555", linestyle="--", linewidth=1)
    panels[0][-1].set(title="planner's regret", xlabel="batch", ylabel="% behind the oracle")
    panels[0][-1].set_xscale("log", base=2)
    panels[0][-1].legend(title="context", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _find(place: Place, name: str) -> Point:
    return next(point for point in place.points if point.policy == name)
