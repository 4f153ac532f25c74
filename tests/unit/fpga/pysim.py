"""Runs a card in Amaranth's own simulator, with a memory that may pause; pure Python."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from aerie.fpga.build_verilator import Pauses
from aerie.fpga.rtl.card import CardEngine
from aerie.fpga.rtl.registers import (
    CONTROL,
    COUNTERS,
    DONE,
    FIRST_ARGUMENT,
    FIRST_COUNTER,
    STATUS,
)


class AxiMemory:
    """The slave side of one AXI4 port over a bytearray, one step a cycle."""

    def __init__(self, top: Any, prefix: str, memory: bytearray, pauses: Pauses) -> None:
        self._signal = lambda name: getattr(top, f"{prefix}_{name}")
        self._width = len(self._signal("rdata")) // 8
        self._memory = memory
        self._pauses = pauses
        self._rng = np.random.default_rng(pauses.seed)
        self._reads: deque[tuple[int, int, bool]] = deque()  # due cycle, address, last
        self._writes: deque[list[int]] = deque()  # address, beats left
        self._answers = 0
        self._cycle = 0

    def _is_open(self, rate: float) -> int:
        return int(not rate or self._rng.random() >= rate)

    async def run(self, ctx: Any) -> None:
        """Forever."""
        signal = self._signal
        names = ("arvalid", "araddr", "arlen", "rready", "awvalid", "awaddr", "awlen", "wvalid",
                 "wdata", "wstrb", "bready")  # fmt: skip
        while True:
            self._cycle += 1
            ready = {
                "arready": self._is_open(self._pauses.read),
                "awready": self._is_open(self._pauses.write),
                "wready": self._is_open(self._pauses.write) if self._writes else 0,
            }
            is_due = bool(self._reads) and self._reads[0][0] <= self._cycle
            ready["rvalid"] = int(is_due) and self._is_open(self._pauses.read)
            ready["bvalid"] = int(self._answers > 0)
            for name, value in ready.items():
                ctx.set(signal(name), value)
            if ready["rvalid"]:
                _, address, is_last = self._reads[0]
                word = self._memory[address : address + self._width]
                ctx.set(signal("rdata"), int.from_bytes(word, "little"))
                ctx.set(signal("rlast"), int(is_last))
            sampled = await ctx.tick().sample(*(signal(name) for name in names))
            self._step(dict(zip(names, sampled[2:], strict=True)), ready)

    def _step(self, seen: dict[str, int], ready: dict[str, int]) -> None:
        if ready["rvalid"] and seen["rready"]:
            self._reads.popleft()
        if ready["bvalid"] and seen["bready"]:
            self._answers -= 1
        if seen["arvalid"] and ready["arready"]:
            due = self._cycle + self._pauses.latency
            for beat in range(seen["arlen"] + 1):
                address = seen["araddr"] + beat * self._width
                self._reads.append((due, address, beat == seen["arlen"]))
        if seen["wvalid"] and ready["wready"]:
            self._store(seen["wdata"], seen["wstrb"])
        if seen["awvalid"] and ready["awready"]:
            self._writes.append([seen["awaddr"], seen["awlen"] + 1])

    def _store(self, data: int, strobe: int) -> None:
        job = self._writes[0]
        for lane in range(self._width):
            if strobe >> lane & 1:
                self._memory[job[0] + lane] = data >> (8 * lane) & 255
        job[0] += self._width
        job[1] -= 1
        if not job[1]:
            self._writes.popleft()
            self._answers += 1


async def write_register(ctx: Any, top: Any, address: int, value: int) -> None:
    """One AXI-Lite write."""
    ctx.set(top.s_axil_awaddr, address)
    ctx.set(top.s_axil_wdata, value)
    ctx.set(top.s_axil_wstrb, 15)
    ctx.set(top.s_axil_awvalid, 1)
    ctx.set(top.s_axil_wvalid, 1)
    ctx.set(top.s_axil_bready, 1)
    await ctx.tick().until(top.s_axil_awready)
    ctx.set(top.s_axil_awvalid, 0)
    ctx.set(top.s_axil_wvalid, 0)
    await ctx.tick()


async def read_register(ctx: Any, top: Any, address: int) -> int:
    """One AXI-Lite read."""
    ctx.set(top.s_axil_araddr, address)
    ctx.set(top.s_axil_arvalid, 1)
    ctx.set(top.s_axil_rready, 1)
    await ctx.tick().until(top.s_axil_arready)
    ctx.set(top.s_axil_arvalid, 0)
    while not ctx.get(top.s_axil_rvalid):
        await ctx.tick()
    value: int = ctx.get(top.s_axil_rdata)
    await ctx.tick()
    return value


def run_card(
    card: CardEngine,
    memory: bytearray,
    arguments: dict[str, int],
    pauses: Pauses | None = None,
    prefixes: tuple[str, ...] = ("m_axi",),
    most_cycles: int = 200_000,
) -> dict[str, int]:
    """Write the arguments, start, wait, and return the counters; the memory holds the results."""
    counters: dict[str, int] = {}
    chosen = pauses or Pauses()

    async def host(ctx: Any) -> None:
        names = card.open_arguments()
        for place, name in enumerate(names):
            value = arguments[name] & (2**64 - 1)
            address = FIRST_ARGUMENT + 8 * place
            await write_register(ctx, card, address, value & 0xFFFFFFFF)
            await write_register(ctx, card, address + 4, value >> 32)
        await write_register(ctx, card, CONTROL, 1)
        for _ in range(most_cycles):
            if (await read_register(ctx, card, STATUS)) >> DONE & 1:
                break
        else:
            raise TimeoutError(f"{type(card).__name__} is not done after {most_cycles} polls")
        for place, name in enumerate(COUNTERS):
            low = await read_register(ctx, card, FIRST_COUNTER + 8 * place)
            high = await read_register(ctx, card, FIRST_COUNTER + 8 * place + 4)
            counters[name] = low | high << 32

    simulator = Simulator(card)
    simulator.add_clock(1e-9)
    for prefix in prefixes:
        slave = AxiMemory(card, prefix, memory, chosen)
        simulator.add_testbench(slave.run, background=True)
    simulator.add_testbench(host)
    simulator.run()
    return counters
