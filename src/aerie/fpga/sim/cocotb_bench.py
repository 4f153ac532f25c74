"""Runs inside the simulator: cocotb's host and cocotbext-axi's memory around one card.

Reads `calls.json` and the memory images beside it, runs every call, and leaves the memory and the
counters of each. Started by `aerie.fpga.build_cocotb` in the folder that holds them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from aerie.fpga.rtl.registers import CONTROL, COUNTERS, DONE, FIRST_ARGUMENT, FIRST_COUNTER, STATUS

MOST_POLLS = 2_000_000


def held_back(rate: float, seed: str) -> Iterator[bool]:
    """Whether a channel is paused in each cycle; the same seed pauses the same way."""
    rng = random.Random(seed)
    while True:
        yield rng.random() < rate


def pause(ram: Any, rate: float, seed: str) -> None:
    """Hold back every channel of a memory, each by a generator of its own."""
    channels = {
        "aw": ram.write_if.aw_channel,
        "w": ram.write_if.w_channel,
        "b": ram.write_if.b_channel,
        "ar": ram.read_if.ar_channel,
        "r": ram.read_if.r_channel,
    }
    for name, channel in channels.items():
        channel.set_pause_generator(held_back(rate, f"{seed} {name}"))


async def run_call(host: Any, arguments: list[int]) -> dict[str, int]:
    """Write the registers, start, wait, read the counters."""
    for place, value in enumerate(arguments):
        await host.write_qword(FIRST_ARGUMENT + 8 * place, value)
    await host.write_dword(CONTROL, 1)
    for _ in range(MOST_POLLS):
        if (await host.read_dword(STATUS)) >> DONE & 1:
            break
    else:
        raise TimeoutError(f"the card is not done after {MOST_POLLS} polls")
    return {
        name: await host.read_qword(FIRST_COUNTER + 8 * place)
        for place, name in enumerate(COUNTERS)
    }


@cocotb.test()  # type: ignore[untyped-decorator]
async def every_call(dut: Any) -> None:
    """All calls of the folder, one after the other on the same card."""
    asked = json.loads(Path("calls.json").read_text("utf-8"))
    memory = bytearray(asked["most_bytes"])
    Clock(dut.clk, 2, "ns").start()
    dut.rst.value = 1
    host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
    rams = [
        AxiRam(AxiBus.from_prefix(dut, prefix), dut.clk, dut.rst, mem=memory)
        for prefix in asked["prefixes"]
    ]
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 4)
    found = []
    for call in asked["calls"]:
        stored = Path(f"{call['name']}.in").read_bytes()
        memory[: len(stored)] = stored
        for number, ram in enumerate(rams):
            pause(ram, call["rate"], f"{call['name']} {number}")
        found.append(await run_call(host, call["arguments"]))
        Path(f"{call['name']}.out").write_bytes(memory[: len(stored)])
    Path("counters.json").write_text(json.dumps(found), "utf-8")
