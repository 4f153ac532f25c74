"""Synthesis of every block for UltraScale+ by yosys: what each takes of a named part."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.lib.wiring import Component

from aerie.fpga.build_tools import run_yosys
from aerie.fpga.page import written
from aerie.fpga.rtl.commit import VerifyResult
from aerie.fpga.rtl.deltas import WorkDeltas
from aerie.fpga.rtl.floats import FLOAT, Multiplier
from aerie.fpga.rtl.gather import RowGather
from aerie.fpga.rtl.layer import LayerScores
from aerie.fpga.rtl.mask import TreeMask
from aerie.fpga.rtl.merge import ScoreMerge
from aerie.fpga.rtl.sorter import COMPARATOR, Sorter
from aerie.fpga.rtl.top import TreeTop
from aerie.fpga.verilog import rtlil_of

RESOURCES = ("LUT", "FF", "DSP", "BRAM36", "URAM")
# AMD DS963, Alveo U280 (XCU280, an UltraScale+ part with HBM).
PART = "xcu280"
PART_HAS = {"LUT": 1_303_680, "FF": 2_607_360, "DSP": 9_024, "BRAM36": 2_016, "URAM": 960}
# Cells by what they take: LUTs that are memory count as LUTs, half a block RAM as half.
_TAKES: Mapping[str, tuple[str, float]] = {
    "RAM32M16": ("LUT", 8),
    "RAM64M8": ("LUT", 8),
    "RAM32X1D": ("LUT", 2),
    "RAM64X1D": ("LUT", 2),
    "SRL16E": ("LUT", 1),
    "SRLC32E": ("LUT", 1),
    "DSP48E2": ("DSP", 1),
    "RAMB18E2": ("BRAM36", 0.5),
    "RAMB36E2": ("BRAM36", 1),
    "URAM288": ("URAM", 1),
}
_SCRIPT = """read_rtlil in.il
hierarchy -top {top}
{keep}
synth_xilinx -family xcup -noiopad -noclkbuf -top {top}
tee -o stat.json stat -json
"""


@dataclass(frozen=True)
class Instance:
    """A circuit to synthesise; `comparator` is the width of its compare-exchange modules."""

    name: str
    what: str
    make: Callable[[], Component]
    comparator: int = 0


def _records(candidates: int) -> int:
    return FLOAT + (candidates - 1).bit_length()


DEFAULTS: tuple[Instance, ...] = (
    Instance("layer", "K1, 64 candidates", lambda: LayerScores(instance=True), _records(64)),
    Instance("merge", "K2's merge, 128 and 64", ScoreMerge),
    Instance("deltas", "K3, 138 scores", WorkDeltas),
    Instance("mask", "K4, 128 rows", TreeMask),
    Instance("commit", "K7, 128 rows", VerifyResult),
    Instance("gather", "rows of 16 KB, 256 bits", RowGather),
    Instance("top", "K1, merge, K3, gather; batch 128", lambda: TreeTop(instance=True),
             _records(64)),
    Instance("sorter", "64 records by itself", lambda: Sorter(64, _records(64), instance=True),
             _records(64)),
    Instance("multiplier", "a float32 product", lambda: Multiplier(6)),
)  # fmt: skip


@dataclass(frozen=True)
class Synthesised:
    """One circuit and what it takes."""

    name: str
    what: str
    takes: Mapping[str, float]
    cells: Mapping[str, int]

    def row(self) -> dict[str, Any]:
        """For the table."""
        shares = {
            f"{name}_percent": round(100 * self.takes[name] / PART_HAS[name], 3)
            for name in RESOURCES
        }
        return {
            "instance": self.name,
            "what": self.what,
            **dict(self.takes),
            **shares,
            "part": PART,
            "kind": "synthesis (yosys)",
        }


def synthesise(instance: Instance, folder: Path) -> Synthesised:
    """Map one circuit; what stays in the folder counts for the same circuit again."""
    folder.mkdir(parents=True, exist_ok=True)
    text = rtlil_of(instance.make(), instance.name, instance.comparator)
    source, result = folder / "in.il", folder / "stat.json"
    if not (result.is_file() and _netlist(source.read_text("utf-8")) == _netlist(text)):
        source.write_text(text, encoding="utf-8")
        keep = f"setattr -mod -set keep_hierarchy 1 {COMPARATOR}" if instance.comparator else ""
        log = run_yosys(_SCRIPT.format(top=instance.name, keep=keep), folder)
        (folder / "yosys.log").write_text(log, encoding="utf-8")
    found = json.loads(result.read_text(encoding="utf-8"))["design"]
    cells = {name: int(count) for name, count in found["num_cells_by_type"].items()}
    return Synthesised(instance.name, instance.what, resources(cells), cells)


def _netlist(text: str) -> str:
    """A circuit without the lines of Python it came from."""
    return "\n".join(line for line in text.splitlines() if "attribute \\src" not in line)


def resources(cells: Mapping[str, int]) -> dict[str, float]:
    """Cells as what a part has of them."""
    takes = dict.fromkeys(RESOURCES, 0.0)
    for name, count in cells.items():
        if name.startswith("LUT"):
            takes["LUT"] += count
        elif name.startswith("FD"):
            takes["FF"] += count
        elif name in _TAKES:
            resource, each = _TAKES[name]
            takes[resource] += each * count
    return takes


def page(record: Mapping[str, Any]) -> str:
    """The table."""
    lines = []
    for row in record["rows"]:
        counts = " | ".join(f"{row[name]:,.10g}" for name in RESOURCES)
        lines.append(
            f"| {row['instance']} | {row['what']} | {counts} | {row['LUT_percent']:.2f} %"
            f" | {row['BRAM36_percent']:.2f} % |"
        )
    return written("synth", lines, record)
