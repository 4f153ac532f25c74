"""Place and route of small instances on a Lattice ECP5: a real clock, and which line limits it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aerie.fpga.build_tools import run_nextpnr, run_yosys
from aerie.fpga.page import written
from aerie.fpga.rtl.deltas import MeanOf
from aerie.fpga.rtl.floats import FLOAT, Multiplier
from aerie.fpga.rtl.gather import Gather
from aerie.fpga.rtl.merge import ScoreMerge
from aerie.fpga.rtl.sorter import Sorter
from aerie.fpga.synth import Instance
from aerie.fpga.verilog import rtlil_of

DEVICE = "LFE5U-85F, speed 6"
_OPTIONS = ["--85k", "--package", "CABGA756", "--speed", "6", "--freq", "200"]
_SCRIPT = "read_rtlil in.il\nsynth_ecp5 -top card -json card.json\n"
_SOURCE = re.compile(r"src/aerie/fpga/rtl/(\w+\.py:\d+)")


# Circuits that fit the part.
INSTANCES: tuple[Instance, ...] = (
    Instance("sorter-8", "8 records, a register a layer", lambda: Sorter(8, FLOAT + 3)),
    Instance("sorter-8-by-2", "8 records, a register every two", lambda: Sorter(8, FLOAT + 3, 2)),
    Instance("sorter-16", "16 records, a register a layer", lambda: Sorter(16, FLOAT + 4)),
    Instance("multiplier", "a float32 product", lambda: Multiplier(6)),
    Instance("mean", "K3's rounding division", MeanOf),
    Instance("gather", "rows of 1 KB, 64 bits", lambda: Gather(64, 128)),
    Instance("merge", "K2's merge, whole card", ScoreMerge),
)


def route(instance: Instance, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Map once, place and route once a seed."""
    found = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.il").write_text(rtlil_of(instance.make(), "card"), encoding="utf-8")
        run_yosys(_SCRIPT, folder)
        for seed in seeds:
            started = time.monotonic()
            run_nextpnr(folder, seed, _OPTIONS)
            report = json.loads((folder / "route.json").read_text(encoding="utf-8"))
            megahertz = min(clock["achieved"] for clock in report["fmax"].values())
            critical, logic, routing = _longest(report["critical_paths"])
            found.append(
                {
                    "name": instance.name,
                    "what": instance.what,
                    "seed": seed,
                    "megahertz": round(megahertz, 2),
                    "critical": critical,  # lines of the circuit on the longest path
                    "logic_ns": round(logic, 2),
                    "routing_ns": round(routing, 2),
                    "seconds": round(time.monotonic() - started, 1),
                    "device": DEVICE,
                    "kind": "place and route (nextpnr-ecp5)",
                }
            )
    return found


def _longest(paths: Iterable[Mapping[str, Any]]) -> tuple[str, float, float]:
    """Lines that the longest path from register to register runs through, logic and routing ns."""
    clocked = [path for path in paths if "clk" in path["from"] and "clk" in path["to"]]
    worst = max(clocked, key=lambda path: sum(step["delay"] for step in path["path"]))
    lines: dict[str, None] = {}
    routing = 0.0
    for step in worst["path"]:
        routing += step["delay"] if step["type"] == "routing" else 0.0
        for source in step.get("sources", ()):
            for line in _SOURCE.findall(source):
                lines[line] = None
    total = sum(step["delay"] for step in worst["path"])
    return " ".join(lines), total - routing, routing


def page(record: Mapping[str, Any]) -> str:
    """The table, one line an instance."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in record["rows"]:
        by_name.setdefault(row["name"], []).append(row)
    lines = []
    for runs in by_name.values():
        clocks = [run["megahertz"] for run in runs]
        worst = min(runs, key=lambda run: run["megahertz"])
        lines.append(
            f"| {worst['name']} | {worst['what']} | {', '.join(f'{clock:.1f}' for clock in clocks)}"
            f" | {min(clocks):.1f} | {worst['logic_ns']:.2f} + {worst['routing_ns']:.2f}"
            f" | {worst['critical'] or 'inside one cell map'} |"
        )
    return written("route", lines, record)
