"""Unroll against width: what a wider or shallower circuit costs, where more stops paying."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

    def row(self) -> dict[str, Any]:
        """For the table."""
        own = {name: getattr(self, name) for name in ("family", "width", "unroll", "latency")}
        return {
            **own,
            "items_per_cycle": round(self.items_per_cycle, 3),
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
    """The last step along growing cost that still buys more speed than it costs in LUTs.

    Speed is items a cycle for designs of different width, or 1 / latency for those of one width.
    """
    ordered = sorted(points, key=lambda point: point.takes["LUT"] + point.takes["FF"] / 2)
    kept = ordered[0]
    for point in ordered[1:]:
        cost = _area(point) / _area(kept)
        gain = point.items_per_cycle / kept.items_per_cycle * kept.latency / point.latency
        if gain > cost:
            kept = point
    return kept


def _area(point: SweepPoint) -> float:
    """A LUT and its two registers are one place."""
    return max(point.takes["LUT"], point.takes["FF"] / 2)


def page(points: Iterable[SweepPoint], origin: Mapping[str, Any]) -> str:
    """Both tables."""
    every = list(points)
    lines = [
        f"| {p.family} | {p.width} | {p.unroll} | {p.takes['LUT']:,.0f} | {p.takes['FF']:,.0f}"
        f" | {p.takes['BRAM36']:g} | {p.latency} | {p.items_per_cycle:g}"
        f" | {1000 * p.items_per_cycle / _area(p):.3f} |"
        for p in every
    ]
    told = []
    for n in WIDTHS:
        one = knee([p for p in every if p.family == "sorter" and p.width == n])
        told.append(f"{n} records: {one.unroll} layer{'s' if one.unroll > 1 else ''} a register")
    bus = knee([p for p in every if p.family == "gather"])
    return (
        _HEAD.read_text("utf-8") + "\n".join(lines)
        + f"\n\nKnee of the sorter: {'; '.join(told)}. Knee of the gather: {bus.width} bits."
        f"\n\nCommit `{origin['commit']}`, {origin['date']}.\n"
    )  # fmt: skip
