"""Amaranth to RTLIL and Verilog."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from amaranth.back import rtlil
from amaranth.lib.wiring import Component

from aerie.fpga.build_tools import run_yosys
from aerie.fpga.rtl.sorter import COMPARATOR, CompareExchange


def rtlil_of(component: Component, name: str, comparator_width: int = 0) -> str:
    """The circuit as RTLIL; comparators that are instances come as a module of their own."""
    text: str = rtlil.convert(component, name=name)
    if comparator_width:
        text += rtlil.convert(CompareExchange(comparator_width), name=COMPARATOR)
    return text


def verilog_of(component: Component, name: str) -> str:
    """The circuit as Verilog."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "in.il").write_text(rtlil_of(component, name), encoding="utf-8")
        run_yosys(
            "read_rtlil in.il\nproc\nmemory_collect\nwrite_verilog -norename out.v\n", Path(folder)
        )
        return (Path(folder) / "out.v").read_text(encoding="utf-8")
