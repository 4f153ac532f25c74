"""Unroll against width: what a wider or shallower circuit costs, where more stops paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from aerie.fpga.page import written
from aerie.fpga.rtl.floats import FLOAT
from aerie.fpga.rtl.gather import Gather
from aerie.fpga.rtl.sorter import Sorter, layers_of
from aerie.fpga.synth import Instance, synthesise

WIDTHS = (8, 16, 32, 64)  # records a sorter takes at once
UNROLLS = (1, 2, 4)  # layers of comparators between two registers
BUSES = (64, 128, 256, 512)  # bits of the gather
ROW_BYTES = 8192
SPEED = "items_per_layer_time"
Row = Mapping[str, Any]


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
            # A cycle is as long as the layers between two registers.
            SPEED: round(self.items_per_cycle / self.unroll, 3),
            **dict(self.takes),
            "kind": "synthesis (yosys), cycles by construction",
        }


def sorter_points(folder: Path) -> list[SweepPoint]:
    """Every width with every number of layers a cycle; a vector enters every cycle."""
    found = []
    for n in WIDTHS:
        record = FLOAT + (n - 1).bit_length()
        for unroll in UNROLLS:
            make = partial(Sorter, n, record, unroll, instance=True)
            takes = _takes(Instance(f"sorter_{n}_{unroll}", "", make, record), folder)
            latency = -(-len(layers_of(n)) // unroll)
            found.append(SweepPoint("sorter", n, unroll, takes, latency, float(n)))
    return found


def gather_points(folder: Path) -> list[SweepPoint]:
    """Every bus; a row of 8 KB takes as many cycles as it has beats."""
    found = []
    for bus in BUSES:
        beats = ROW_BYTES * 8 // bus
        takes = _takes(Instance(f"gather_{bus}", "", partial(Gather, bus, beats)), folder)
        found.append(SweepPoint("gather", bus, 1, takes, beats, bus / 8))
    return found


def _takes(instance: Instance, folder: Path) -> Mapping[str, float]:
    return synthesise(instance, folder / instance.name).takes


def knee(rows: Sequence[Row]) -> Row:
    """The last step along growing area that still buys more speed than it costs."""
    ordered = sorted(rows, key=lambda row: (_area(row), row[SPEED]))
    kept = ordered[0]
    for row in ordered[1:]:
        if row[SPEED] / kept[SPEED] > _area(row) / _area(kept):
            kept = row
    return kept


def _area(row: Row) -> float:
    """A LUT and its two registers are one place."""
    return float(max(row["LUT"], row["FF"] / 2))


def page(record: Mapping[str, Any]) -> str:
    """Both tables, their knees, and what a wider sorter costs."""
    rows = record["rows"]
    lines = [
        f"| {r['family']} | {r['width']} | {r['unroll']} | {r['LUT']:,.0f} | {r['FF']:,.0f}"
        f" | {r['BRAM36']:g} | {r['latency']} | {r['items_per_cycle']:g} | {r[SPEED]:g}"
        f" | {1000 * r[SPEED] / _area(r):.3f} |"
        for r in rows
    ]
    sorters = {n: [r for r in rows if r["family"] == "sorter" and r["width"] == n] for n in WIDTHS}
    knees = [knee(sorters[n]) for n in WIDTHS]
    told = [f"{r['width']} records: {r['unroll']}" for r in knees]
    steps = [f"{_area(new) / _area(old):.2f}" for old, new in pairwise(knees)]
    bus = knee([r for r in rows if r["family"] == "gather"])
    tail = (
        f"\n\nKnee of the unroll, in layers a register: {'; '.join(told)}. Twice the width costs"
        f" {', '.join(steps)} times the places, so a sorter is as wide as W*K and no wider. Knee of"
        f" the gather's bus: {bus['width']} bits."
    )
    return written("sweep", lines, record, tail)
