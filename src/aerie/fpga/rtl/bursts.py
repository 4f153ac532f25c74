"""The signals of an AXI4 master, and jobs of many beats cut into bursts."""

from __future__ import annotations

from typing import TypeAlias

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

ADDRESS, COUNT = 40, 32
BEATS = 16  # of the longest burst
INCREMENTING = 1

Member: TypeAlias = wiring.Member


def read_members(prefix: str, data: int) -> dict[str, Member]:
    """The read channels of an AXI4 master."""
    return {
        f"{prefix}_arid": Out(1),
        f"{prefix}_araddr": Out(ADDRESS),
        f"{prefix}_arlen": Out(8),
        f"{prefix}_arsize": Out(3),
        f"{prefix}_arburst": Out(2),
        f"{prefix}_arvalid": Out(1),
        f"{prefix}_arready": In(1),
        f"{prefix}_rid": In(1),
        f"{prefix}_rdata": In(data),
        f"{prefix}_rresp": In(2),
        f"{prefix}_rlast": In(1),
        f"{prefix}_rvalid": In(1),
        f"{prefix}_rready": Out(1),
    }


def write_members(prefix: str, data: int) -> dict[str, Member]:
    """The write channels of an AXI4 master."""
    return {
        f"{prefix}_awid": Out(1),
        f"{prefix}_awaddr": Out(ADDRESS),
        f"{prefix}_awlen": Out(8),
        f"{prefix}_awsize": Out(3),
        f"{prefix}_awburst": Out(2),
        f"{prefix}_awvalid": Out(1),
        f"{prefix}_awready": In(1),
        f"{prefix}_wdata": Out(data),
        f"{prefix}_wstrb": Out(data // 8),
        f"{prefix}_wlast": Out(1),
        f"{prefix}_wvalid": Out(1),
        f"{prefix}_wready": In(1),
        f"{prefix}_bid": In(1),
        f"{prefix}_bresp": In(2),
        f"{prefix}_bvalid": In(1),
        f"{prefix}_bready": Out(1),
    }


def fixed_signals(top: wiring.Component, prefix: str, kind: str, data: int) -> list[Value]:
    """What never changes on an address channel; `kind` is ar or aw."""
    size = (data // 8).bit_length() - 1
    return [
        getattr(top, f"{prefix}_{kind}id").eq(0),
        getattr(top, f"{prefix}_{kind}size").eq(size),
        getattr(top, f"{prefix}_{kind}burst").eq(INCREMENTING),
    ]


class BurstSplitter(wiring.Component):
    """Cuts (first beat, number of beats) into bursts; `i_credit` holds one back until it may go."""

    def __init__(self, shift: int) -> None:
        self.shift = shift  # log2 of the bytes of a beat
        super().__init__(
            {
                "i_valid": In(1),
                "o_ready": Out(1),
                "i_first": In(ADDRESS),
                "i_beats": In(COUNT),
                "i_credit": In(1),
                "o_length": Out(5),
                "o_valid": Out(1),
                "i_accept": In(1),
                "o_address": Out(ADDRESS),
                "o_idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """One job at a time."""
        m = Module()
        beat, left = Signal(ADDRESS), Signal(COUNT)
        room = BEATS - beat[0:4]
        m.d.comb += [
            self.o_length.eq(Mux(left < room, left, room)),
            self.o_valid.eq((left != 0) & self.i_credit),
            self.o_address.eq(beat << self.shift),
            self.o_ready.eq(left == 0),
            self.o_idle.eq(left == 0),
        ]
        with m.If((left == 0) & self.i_valid):
            m.d.sync += [beat.eq(self.i_first), left.eq(self.i_beats)]
        with m.Elif(self.o_valid & self.i_accept):
            m.d.sync += [beat.eq(beat + self.o_length), left.eq(left - self.o_length)]
        return m
