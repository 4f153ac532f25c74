"""AXI4 masters that move elements: a reader and a writer of arrays of 1, 2, 4 or 8 byte elements.

Bursts end at multiples of 16 beats, so none crosses a 4 KB boundary. Commands queue up: a block
that asks for three arrays in a row gets their elements back to back.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from aerie.fpga.rtl.bursts import (
    ADDRESS,
    BEATS,
    COUNT,
    BurstSplitter,
    Member,
    fixed_signals,
    read_members,
    write_members,
)

SIZE = 2
WORD = 64
COMMANDS = 8  # that wait


def command_members(kind: str) -> dict[str, Member]:
    """A queue of commands: where, how many, how wide."""
    return {
        f"{kind}_valid": In(1),
        f"{kind}_ready": Out(1),
        f"{kind}_address": In(ADDRESS),
        f"{kind}_count": In(COUNT),
        f"{kind}_size": In(SIZE),
    }


def beats_of(address: Value, count: Value, size: Value) -> Value:
    """8-byte beats that `count` elements of 2^size bytes from `address` on touch."""
    end = (address[0:3] + (count << size) + 7) >> 3
    return end[0:COUNT]


def element_mask(size: Value) -> Value:
    """The bits of an element of 2^size bytes."""
    masks = [(1 << (8 << k)) - 1 for k in range(4)]
    return Mux(size[1], Mux(size[0], masks[3], masks[2]), Mux(size[0], masks[1], masks[0]))


class Reader(wiring.Component):
    """Reads arrays element by element: at most one a cycle, in the order of the commands."""

    def __init__(self, prefix: str = "m_axi", depth: int = 64) -> None:
        self.prefix = prefix
        self.depth = depth
        super().__init__(
            {
                **command_members("command"),
                "o_valid": Out(1),
                "i_ready": In(1),
                "o_data": Out(WORD),
                "o_bytes": Out(4),  # taken this cycle
                "o_idle": Out(1),
                **read_members(prefix, WORD),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Address side, data queue, extraction."""
        m = Module()
        own = lambda name: getattr(self, f"{self.prefix}_{name}")  # noqa: E731
        m.submodules.asked = asked = SyncFIFO(width=ADDRESS + COUNT, depth=COMMANDS)
        m.submodules.taken = taken = SyncFIFO(width=3 + COUNT + SIZE, depth=COMMANDS)
        m.submodules.words = words = SyncFIFOBuffered(width=WORD, depth=self.depth)
        m.submodules.split = split = BurstSplitter(3)
        is_empty = self.command_count == 0
        room = asked.w_rdy & taken.w_rdy
        push = self.command_valid & room & ~is_empty
        n_beats = beats_of(self.command_address, self.command_count, self.command_size)
        m.d.comb += [
            self.command_ready.eq(room),
            asked.w_data.eq(Cat(self.command_address >> 3, n_beats)),
            asked.w_en.eq(push),
            taken.w_data.eq(Cat(self.command_address[0:3], self.command_count, self.command_size)),
            taken.w_en.eq(push),
            split.i_first.eq(asked.r_data[0:ADDRESS]),
            split.i_beats.eq(asked.r_data[ADDRESS:]),
            split.i_valid.eq(asked.r_rdy),
            asked.r_en.eq(split.o_ready),
        ]
        # Words that were asked for and have not left the queue: never more than it holds.
        held = Signal(range(self.depth + 1))
        goes = split.o_valid & own("arready")
        pops = words.r_en & words.r_rdy
        m.d.sync += held.eq(held + Mux(goes, split.o_length, 0) - pops)
        m.d.comb += [
            split.i_credit.eq(held + split.o_length <= self.depth),
            split.i_accept.eq(own("arready")),
            own("arvalid").eq(split.o_valid),
            own("araddr").eq(split.o_address),
            own("arlen").eq(split.o_length - 1),
            *fixed_signals(self, self.prefix, "ar", WORD),
            words.w_data.eq(own("rdata")),
            words.w_en.eq(own("rvalid")),
            own("rready").eq(words.w_rdy),
        ]
        active = self._extract(m, taken, words)
        m.d.comb += self.o_idle.eq(~active & ~asked.r_rdy & ~taken.r_rdy & split.o_idle)
        return m

    def _extract(self, m: Module, taken: SyncFIFO, words: SyncFIFOBuffered) -> Signal:
        active, offset = Signal(), Signal(4)
        left, size = Signal(COUNT), Signal(SIZE)
        step = Signal(4)
        is_last = left == 1
        moves = self.o_valid & self.i_ready
        shifted = words.r_data >> (offset[0:3] << 3)
        m.d.comb += [
            step.eq(1 << size),
            self.o_valid.eq(active & words.r_rdy),
            self.o_data.eq(shifted & element_mask(size)),
            self.o_bytes.eq(Mux(moves, step, 0)),
            words.r_en.eq(moves & (is_last | (offset + step == 8))),
        ]
        with m.If(moves):
            m.d.sync += [offset.eq((offset + step)[0:3]), left.eq(left - 1)]
        # The next command follows the last element without a gap.
        m.d.comb += taken.r_en.eq(~active | (moves & is_last))
        with m.If(taken.r_en):
            m.d.sync += active.eq(taken.r_rdy)
            with m.If(taken.r_rdy):
                m.d.sync += [
                    offset.eq(taken.r_data[0:3]),
                    left.eq(taken.r_data[3 : 3 + COUNT]),
                    size.eq(taken.r_data[3 + COUNT :]),
                ]
        return active


class Writer(wiring.Component):
    """Writes arrays element by element: at most one a cycle, in the order of the commands."""

    def __init__(self, prefix: str = "m_axi", depth: int = 32) -> None:
        self.prefix = prefix
        self.depth = depth
        super().__init__(
            {
                **command_members("command"),
                "i_valid": In(1),
                "o_ready": Out(1),
                "i_data": In(WORD),
                "o_bytes": Out(4),  # given this cycle
                "o_idle": Out(1),
                **write_members(prefix, WORD),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Address side, packing, responses."""
        m = Module()
        own = lambda name: getattr(self, f"{self.prefix}_{name}")  # noqa: E731
        m.submodules.asked = asked = SyncFIFO(width=ADDRESS + COUNT, depth=COMMANDS)
        m.submodules.given = given = SyncFIFO(width=7 + COUNT + SIZE, depth=COMMANDS)
        m.submodules.beats = beats = SyncFIFOBuffered(width=WORD + 9, depth=self.depth)
        m.submodules.split = split = BurstSplitter(3)
        room = asked.w_rdy & given.w_rdy
        push = self.command_valid & room & (self.command_count != 0)
        n_beats = beats_of(self.command_address, self.command_count, self.command_size)
        m.d.comb += [
            self.command_ready.eq(room),
            asked.w_data.eq(Cat(self.command_address >> 3, n_beats)),
            asked.w_en.eq(push),
            given.w_data.eq(Cat(self.command_address[0:7], self.command_count, self.command_size)),
            given.w_en.eq(push),
            split.i_first.eq(asked.r_data[0:ADDRESS]),
            split.i_beats.eq(asked.r_data[ADDRESS:]),
            split.i_valid.eq(asked.r_rdy),
            asked.r_en.eq(split.o_ready),
            split.i_credit.eq(1),
            split.i_accept.eq(own("awready")),
            own("awvalid").eq(split.o_valid),
            own("awaddr").eq(split.o_address),
            own("awlen").eq(split.o_length - 1),
            *fixed_signals(self, self.prefix, "aw", WORD),
            own("wdata").eq(beats.r_data[0:WORD]),
            own("wstrb").eq(beats.r_data[WORD : WORD + 8]),
            own("wlast").eq(beats.r_data[WORD + 8]),
            own("wvalid").eq(beats.r_rdy),
            beats.r_en.eq(own("wready")),
            own("bready").eq(1),
        ]
        # Bursts whose answer is outstanding.
        open_bursts = Signal(16)
        goes = split.o_valid & own("awready")
        m.d.sync += open_bursts.eq(open_bursts + goes - own("bvalid"))
        active = self._pack(m, given, beats)
        m.d.comb += self.o_idle.eq(
            ~active & ~given.r_rdy & ~asked.r_rdy & split.o_idle & ~beats.r_rdy
            & (open_bursts == 0)
        )  # fmt: skip
        return m

    def _pack(self, m: Module, given: SyncFIFO, beats: SyncFIFOBuffered) -> Signal:
        active, offset, beat = Signal(), Signal(3), Signal(4)
        left, size = Signal(COUNT), Signal(SIZE)
        word, strobe, step = Signal(WORD), Signal(8), Signal(4)
        is_last = left == 1
        moves = self.i_valid & self.o_ready
        is_full = (offset + step) == 8
        element = ((self.i_data & element_mask(size)) << (offset << 3))[0:WORD]
        lanes = (((1 << step) - 1) << offset)[0:8]
        m.d.comb += [
            step.eq(1 << size),
            self.o_ready.eq(active & beats.w_rdy),
            self.o_bytes.eq(Mux(moves, step, 0)),
            beats.w_en.eq(moves & (is_full | is_last)),
            beats.w_data.eq(Cat(word | element, strobe | lanes, is_last | (beat == BEATS - 1))),
        ]
        with m.If(moves):
            m.d.sync += [offset.eq(offset + step), left.eq(left - 1)]
            m.d.sync += [word.eq(word | element), strobe.eq(strobe | lanes)]
            with m.If(is_full | is_last):
                m.d.sync += [word.eq(0), strobe.eq(0), beat.eq(beat + 1)]
        m.d.comb += given.r_en.eq(~active | (moves & is_last))
        with m.If(given.r_en):
            m.d.sync += active.eq(given.r_rdy)
            with m.If(given.r_rdy):
                m.d.sync += [
                    offset.eq(given.r_data[0:3]),
                    beat.eq(given.r_data[3:7]),
                    left.eq(given.r_data[7 : 7 + COUNT]),
                    size.eq(given.r_data[7 + COUNT :]),
                ]
        return active
