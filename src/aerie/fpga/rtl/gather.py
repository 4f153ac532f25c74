"""Rows from one place of memory to others, a bus word a cycle, through two buffers in turns."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from aerie.fpga.rtl.bursts import (
    ADDRESS,
    BEATS,
    BurstSplitter,
    fixed_signals,
    read_members,
    write_members,
)
from aerie.fpga.rtl.card import DOUBLE, CardEngine, counted_loop

JOBS = 16
ROW = 16  # bits of a row's number
MOST_CHILDREN = 10


class Gather(wiring.Component):
    """Copies source rows to their children; a row that several want is read once.

    A job is a source row and a mask of children. While one buffer is written to memory, once for
    each of its children, the next row is read into the other. Rows begin at multiples of the bus.
    """

    def __init__(self, bus: int = 256, most_beats: int = 512, prefix: str = "g_axi") -> None:
        self.bus = bus
        self.most_beats = most_beats
        self.prefix = prefix
        super().__init__(
            {
                "i_valid": In(1),
                "o_ready": Out(1),
                "i_source": In(ROW),
                "i_children": In(MOST_CHILDREN),
                "i_first_child": In(ROW),
                "i_source_base": In(ADDRESS),
                "i_target_base": In(ADDRESS),
                "i_beats": In(16),  # of a row
                "o_idle": Out(1),
                "o_bytes_in": Out(8),
                "o_bytes_out": Out(8),
                "o_stall_read": Out(1),
                "o_stall_write": Out(1),
                "o_moves": Out(1),
                **read_members(prefix, bus),
                **write_members(prefix, bus),
            }
        )

    def own(self, name: str) -> Signal:
        """A signal of the port."""
        found: Signal = getattr(self, f"{self.prefix}_{name}")
        return found

    def elaborate(self, platform: object) -> Module:
        """A reading half and a writing half with two buffers between them."""
        m = Module()
        width = ROW + MOST_CHILDREN + ROW
        m.submodules.jobs = jobs = SyncFIFO(width=width, depth=JOBS)
        m.submodules.buffer = buffer = Memory(shape=self.bus, depth=2 * self.most_beats, init=[])
        self.fill, self.drain = buffer.write_port(), buffer.read_port()
        m.d.comb += [
            jobs.w_data.eq(Cat(self.i_source, self.i_children, self.i_first_child)),
            jobs.w_en.eq(self.i_valid),
            self.o_ready.eq(jobs.w_rdy),
        ]
        # Which buffers hold a row, and for which request.
        self.is_full = Array(Signal(name=f"full_{i}") for i in range(2))
        self.children = Array(Signal(MOST_CHILDREN, name=f"children_{i}") for i in range(2))
        self.first_child = Array(Signal(ROW, name=f"first_{i}") for i in range(2))
        reading = self._read(m, jobs)
        writing = self._write(m)
        m.d.comb += self.o_idle.eq(
            ~reading & ~writing & ~jobs.r_rdy & ~self.is_full[0] & ~self.is_full[1]
        )
        return m

    def _read(self, m: Module, jobs: SyncFIFO) -> Value:
        shift = (self.bus // 8).bit_length() - 1
        m.submodules.ask = ask = BurstSplitter(shift)
        side, active, place = Signal(), Signal(), Signal(16)
        starts = ~active & jobs.r_rdy & ~self.is_full[side] & ask.o_ready
        source = jobs.r_data[0:ROW]
        m.d.comb += [
            jobs.r_en.eq(starts),
            ask.i_valid.eq(starts),
            ask.i_first.eq((self.i_source_base >> shift) + source * self.i_beats),
            ask.i_beats.eq(self.i_beats),
            ask.i_credit.eq(1),
            ask.i_accept.eq(self.own("arready")),
            self.own("arvalid").eq(ask.o_valid),
            self.own("araddr").eq(ask.o_address),
            self.own("arlen").eq(ask.o_length - 1),
            *fixed_signals(self, self.prefix, "ar", self.bus),
            self.own("rready").eq(active),
        ]
        moves = self.own("rvalid") & self.own("rready")
        m.d.comb += [
            self.fill.addr.eq(Mux(side, self.most_beats, 0) + place),
            self.fill.data.eq(self.own("rdata")),
            self.fill.en.eq(moves),
            self.o_bytes_in.eq(Mux(moves, self.bus // 8, 0)),
            self.o_stall_read.eq(active & ~self.own("rvalid")),
        ]
        with m.If(starts):
            m.d.sync += [active.eq(1), place.eq(0)]
            m.d.sync += self.children[side].eq(jobs.r_data[ROW : ROW + MOST_CHILDREN])
            m.d.sync += self.first_child[side].eq(jobs.r_data[ROW + MOST_CHILDREN :])
        with m.If(moves):
            m.d.sync += place.eq(place + 1)
            with m.If(place + 1 == self.i_beats):
                m.d.sync += [active.eq(0), self.is_full[side].eq(1), side.eq(~side)]
        return active

    def _write(self, m: Module) -> Value:
        shift = (self.bus // 8).bit_length() - 1
        m.submodules.tell = tell = BurstSplitter(shift)
        side, active = Signal(), Signal()
        place, beat, child = Signal(16), Signal(4), Signal(4)
        ahead = Signal(16)
        open_bursts = Signal(16)
        mine = self.children[side]
        is_wanted = mine.bit_select(child, 1)
        starts = ~active & self.is_full[side] & is_wanted & tell.o_ready
        row = self.first_child[side] + child
        first = (self.i_target_base >> shift) + row * self.i_beats
        m.d.comb += [
            tell.i_valid.eq(starts),
            tell.i_first.eq(first),
            tell.i_beats.eq(self.i_beats),
            tell.i_credit.eq(1),
            tell.i_accept.eq(self.own("awready")),
            self.own("awvalid").eq(tell.o_valid),
            self.own("awaddr").eq(tell.o_address),
            self.own("awlen").eq(tell.o_length - 1),
            *fixed_signals(self, self.prefix, "aw", self.bus),
            # A block RAM answers a cycle later, so it is asked for the word after this one.
            self.drain.addr.eq(Mux(side, self.most_beats, 0) + ahead),
            self.drain.en.eq(1),
            self.own("wdata").eq(self.drain.data),
            self.own("wstrb").eq(~0),
            self.own("wvalid").eq(active),
            self.own("wlast").eq((place + 1 == self.i_beats) | (beat == BEATS - 1)),
            self.own("bready").eq(1),
        ]
        moves = self.own("wvalid") & self.own("wready")
        m.d.comb += [
            ahead.eq(Mux(starts, 0, place + moves)),
            self.o_bytes_out.eq(Mux(moves, self.bus // 8, 0)),
            self.o_stall_write.eq(active & ~self.own("wready")),
            self.o_moves.eq(moves),
        ]
        goes = tell.o_valid & self.own("awready")
        m.d.sync += open_bursts.eq(open_bursts + goes - self.own("bvalid"))
        ends = moves & (place + 1 == self.i_beats)
        with m.If(starts):
            m.d.sync += [active.eq(1), place.eq(0), beat.eq(first[0:4])]
        with m.If(moves):
            m.d.sync += [place.eq(place + 1), beat.eq(beat + 1)]
        with m.If(ends):
            m.d.sync += active.eq(0)
        # The next child, or the other buffer.
        skips = ~active & self.is_full[side] & ~is_wanted
        with m.If(ends | skips):
            with m.If((mine >> (child + 1)) == 0):
                m.d.sync += [child.eq(0), self.is_full[side].eq(0), side.eq(~side)]
            with m.Else():
                m.d.sync += child.eq(child + 1)
        return active | (open_bursts != 0)


class RowGather(CardEngine):
    """The gather as a card of its own: rows from where a list says to where it says."""

    ARGUMENTS = ("n_rows", "row_beats")
    PORTS = ("moves", "source_rows", "target_rows")

    def __init__(self, bus: int = 256, most_beats: int = 512) -> None:
        self.bus = bus
        self.most_beats = most_beats
        super().__init__({**read_members("g_axi", bus), **write_members("g_axi", bus)})

    def body(self, m: Module) -> None:
        """Pairs of row numbers, one job each."""
        m.submodules.gather = gather = Gather(self.bus, self.most_beats)
        for name in (*read_members("g_axi", self.bus), *write_members("g_axi", self.bus)):
            self._join(m, name, gather)
        count = self.argument("n_rows")
        place = Signal(32)
        m.d.comb += [
            gather.i_source_base.eq(self.argument("source_rows_base")),
            gather.i_target_base.eq(self.argument("target_rows_base")),
            gather.i_beats.eq(self.argument("row_beats")),
            gather.i_children.eq(1),
            self.extra_in.eq(gather.o_bytes_in),
            self.extra_out.eq(gather.o_bytes_out),
            self.items.eq(gather.o_moves),
            self.item_cycles.eq(gather.o_moves | gather.o_stall_write),
        ]
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.next = "ASK"
            with m.State("ASK"):
                with m.If(count == 0):
                    m.next = "DRAIN"
                with m.Else(), m.If(self.reads(m, "moves", Const(0), count, DOUBLE)):
                    m.next = "MOVE"
            with m.State("MOVE"):
                is_there, pair = self.takes(m)
                m.d.comb += [
                    self.reader.i_ready.eq(gather.o_ready),
                    gather.i_valid.eq(is_there),
                    gather.i_source.eq(pair[0:32]),
                    gather.i_first_child.eq(pair[32:64]),
                    self.downstream_full.eq(is_there & ~gather.o_ready),
                ]
                with m.If(counted_loop(m, place, is_there & gather.o_ready, count)):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                self.finishes(m, gather.o_idle)
                m.d.comb += self.stall_read.eq(gather.o_stall_read & ~gather.o_moves)
                with m.If(self.done):
                    m.next = "IDLE"
