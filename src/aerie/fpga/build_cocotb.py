"""Builds a card with Verilator and runs it under cocotb, whose memory is cocotbext-axi's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import BackendUnavailableError
from aerie.fpga.build_tools import run_tool
from aerie.fpga.build_verilator import verilator_root
from aerie.fpga.rtl.card import CardEngine
from aerie.fpga.sim.images import Image
from aerie.fpga.verilog import verilog_of

BENCH = "aerie.fpga.sim.cocotb_bench"
SOURCE = Path(__file__).parents[2]
_PROGRAM = """
import os
import sys
bench, root, source = sys.argv[1:]
os.environ["VERILATOR_ROOT"] = root
os.environ["PATH"] = root + "/bin" + os.pathsep + os.environ["PATH"]
# The package's makefile was configured without the compiler's name for this.
os.environ["MAKEFLAGS"] = "CFG_CXXFLAGS_PCH_I=-include"
sys.path.insert(0, source)
from cocotb_tools.runner import get_runner
runner = get_runner("verilator")
# cocotb asks for every signal of every module; the ports are enough, and compile in a tenth.
commands = runner._build_command
narrow = {"--public-flat-rw": ["--public-depth", "1"]}
runner._build_command = lambda: [
    [word for each in command for word in narrow.get(each, [each])] for command in commands()
]
arguments = ["-Wno-fatal", "-Wno-lint", "-Wno-UNOPTFLAT", "--x-initial", "0", "-O3", "-CFLAGS",
             "-O1"]
runner.build(sources=["card.v"], hdl_toplevel="card", build_args=arguments, build_dir="build",
             timescale=("1ns", "1ps"))
runner.test(hdl_toplevel="card", test_module=bench, build_dir="build", test_dir=".",
            results_xml=os.path.abspath("results.xml"))
"""


@dataclass(frozen=True, eq=False)
class CosimCall:
    """One call: its memory, its registers, and how often each channel is held back."""

    image: Image
    registers: dict[str, int]
    rate: float


@dataclass(frozen=True)
class CosimResult:
    """The memory after a call, and the card's counters."""

    memory: bytes
    counters: dict[str, int]


def run_cocotb(
    card: CardEngine, prefixes: Sequence[str], calls: Sequence[CosimCall], folder: Path
) -> list[CosimResult]:
    """Run the calls in order; everything the simulator read and wrote stays in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.v").write_text(verilog_of(card, "card"), encoding="utf-8")
    asked = []
    for number, call in enumerate(calls):
        (folder / f"{number}.in").write_bytes(call.image.memory)
        values = [call.registers[name] & (2**64 - 1) for name in card.open_arguments()]
        asked.append({"name": str(number), "arguments": values, "rate": call.rate})
    most = max(len(call.image.memory) for call in calls)
    wanted = {"prefixes": list(prefixes), "calls": asked, "most_bytes": most}
    (folder / "calls.json").write_text(json.dumps(wanted), "utf-8")
    command = [sys.executable, "-c", _PROGRAM, BENCH, str(verilator_root()), str(SOURCE)]
    said = run_tool("cocotb", command, folder)
    if not (folder / "counters.json").is_file():
        raise BackendUnavailableError(f"cocotb left no counters:\n{said[-4000:]}")
    counters = json.loads((folder / "counters.json").read_text("utf-8"))
    return [
        CosimResult((folder / f"{number}.out").read_bytes(), counted)
        for number, counted in enumerate(counters)
    ]
