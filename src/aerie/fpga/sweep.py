"""Unroll against width: what a wider or shallower circuit costs, where more stops paying."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from aerie.fpga.rtl.floats import FLOAT
from aerie.fpga.rtl.gather import Gather
from aerie.fpga.rtl.sorter import Sorter, layers_of
from aerie.fpga.synth import Instance, Synthesised, synthesise

WIDTHS = (8, 16, 32, 64)  # records a sorter takes at once
UNROLLS = (1, 2, 4)  # layers of comparators between two registers
BUSES = (64, 128, 256, 512)  # bits of the gather
ROW_BYTES = 8192
_HEAD = Path(__file__).parent / "pages" / "sweep.md"


@dataclass(frozen=True)
class SweepPoint:
    """One design: its cost, and how much it does a cycle or how long it takes."""

    family: str
    width: int
    unroll: int
    takes: Mapping[str, float]
    latency: int  # cycles of one vector, or of one row
    items_per_cycle: float

    @property
    def speed(self) -> float:
        """Items in the time of one layer: a cycle is as long as the layers between registers."""
        return self.items_per_cycle / self.unroll

    def row(self) -> dict[str, Any]:
        """For the table."""
        own = {name: getattr(self, name) for name in ("family", "width", "unroll", "latency")}
        return {
            **own,
            "items_per_cycle": round(self.items_per_cycle, 3),
            "items_per_layer_time": round(self.speed, 3),
            **dict(self.takes),
            "kind": "synthesis (yosys), cycles by construction",
        }


def sorter_points(folder: Path) -> list[SweepPoint]:
    """Every width with every number of layers a cycle; a vector enters every cycle."""
    found = []
    for n in WIDTHS:
        record = FLOAT + (n - 1).bit_length()
        for unroll in UNROLLS:
            made = _made(
                Instance(f"sorter_{n}_{unroll}", "", _sorter(n, record, unroll), record), folder
            )
            latency = -(-len(layers_of(n)) // unroll)
            found.append(SweepPoint("sorter", n, unroll, made.takes, latency, float(n)))
    return found


def _sorter(n: int, record: int, unroll: int) -> Any:
    return lambda: Sorter(n, record, unroll, instance=True)


def gather_points(folder: Path) -> list[SweepPoint]:
    """Every bus; a row of 8 KB takes as many cycles as it has beats."""
    found = []
    for bus in BUSES:
        beats = ROW_BYTES * 8 // bus
        made = _made(Instance(f"gather_{bus}", "", _gather(bus, beats)), folder)
        found.append(SweepPoint("gather", bus, 1, made.takes, beats, bus / 8))
    return found


def _gather(bus: int, beats: int) -> Any:
    return lambda: Gather(bus, beats)


def _made(instance: Instance, folder: Path) -> Synthesised:
    return synthesise(instance, folder / instance.name)


def knee(points: Sequence[SweepPoint]) -> SweepPoint:
    """The last step along growing area that still buys more speed than it costs."""
    ordered = sorted(points, key=lambda point: (_area(point), point.speed))
    kept = ordered[0]
    for point in ordered[1:]:
        if point.speed / kept.speed > _area(point) / _area(kept):
            kept = point
    return kept


def _area(point: SweepPoint) -> float:
    """A LUT and its two registers are one place."""
    return max(point.takes["LUT"], point.takes["FF"] / 2)


def page(points: Iterable[SweepPoint], tools: Mapping[str, str], origin: Mapping[str, Any]) -> str:
    """Both tables, their knees, and what a wider sorter costs."""
    every = list(points)
    lines = [
        f"| {p.family} | {p.width} | {p.unroll} | {p.takes['LUT']:,.0f} | {p.takes['FF']:,.0f}"
        f" | {p.takes['BRAM36']:g} | {p.latency} | {p.items_per_cycle:g} | {p.speed:g}"
        f" | {1000 * p.speed / _area(p):.3f} |"
        for p in every
    ]
    sorters = {n: [p for p in every if p.family == "sorter" and p.width == n] for n in WIDTHS}
    knees = [knee(sorters[n]) for n in WIDTHS]
    told = [f"{p.width} records: {p.unroll}" for p in knees]
    steps = [f"{_area(new) / _area(old):.2f}" for old, new in pairwise(knees)]
    bus = knee([p for p in every if p.family == "gather"])
    said = ", ".join(f"{name} {version}" for name, version in tools.items())
    return (
        _HEAD.read_text("utf-8") + "\n".join(lines)
        + f"\n\nKnee of the unroll, in layers a register: {'; '.join(told)}. Twice the width costs"
        f" {', '.join(steps)} times the places, so a sorter is as wide as W*K and no wider. Knee of"
        f" the gather's bus: {bus.width} bits."
        f"\n\nCommit `{origin['commit']}`, {origin['date']}; {said}.\n"
    )  # fmt: skip
