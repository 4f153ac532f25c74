"""The circuits under a host and a memory that others wrote: cocotb and cocotbext-axi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from aerie.fpga.blocks import Block
from aerie.fpga.build_cocotb import CosimCall, run_cocotb
from aerie.fpga.page import written
from aerie.fpga.rtl.registers import COUNTERS
from aerie.fpga.sim.calls import SimCall, dump_calls, random_calls

RATES = {"free": 0.0, "paused": 0.3}
MOST_BYTES = 400_000  # of an image: a simulated beat takes long in Python


def calls_of(block: Block, dumps: Path, n_random: int) -> list[SimCall]:
    """Every dump of the block within its bounds, and a few random calls."""
    found = dump_calls(block, dumps) if block.kernel else iter(())
    own = [*found, *islice(random_calls(block, 128 * n_random, seed=11), n_random)]
    return [call for call in own if not block.beyond(call.inputs)]


def study(block: Block, calls: Sequence[SimCall], folder: Path) -> list[dict[str, Any]]:
    """A row for each memory: calls, those that differ, and the counters added up."""
    made = [block.image(call.inputs, call.outputs) for call in calls]
    short = [one for one in made if len(one.image.memory) <= MOST_BYTES]
    asked = [
        CosimCall(one.image, one.registers, rate) for rate in RATES.values() for one in short
    ]  # fmt: skip
    results = run_cocotb(block.make(), block.prefixes, asked, folder)
    rows = []
    for number, memory in enumerate(RATES):
        own = results[number * len(short) : (number + 1) * len(short)]
        pairs = list(zip(short, own, strict=True))
        counters = {name: sum(one.counters[name] for one in own) for name in COUNTERS}
        rows.append(
            {
                "block": block.name,
                "memory": memory,
                "calls": len(own),
                "left_out": len(made) - len(short),
                "differing": sum(bool(one.differing(seen.memory)) for one, seen in pairs),
                **counters,
                "kind": "rtl-sim",
            }
        )
    return rows


def page(record: Mapping[str, Any]) -> str:
    """The table."""
    rows, lines = record["rows"], []
    for row in rows:
        stalls = sum(row[name] for name in COUNTERS if name.startswith(("stall", "up", "down")))
        lines.append(
            f"| {row['block']} | {row['memory']} | {row['calls']} | {row['differing']}"
            f" | {row['cycles']:,} | {row['bytes_in']:,} | {row['bytes_out']:,}"
            f" | {100 * stalls / row['cycles']:.1f} % |"
        )
    left = sum(row["left_out"] for row in rows if row["memory"] == "free")
    tail = f"\n\n{left} calls with more than {MOST_BYTES:,} bytes of memory were left out."
    return written("cosim", lines, record, tail)
