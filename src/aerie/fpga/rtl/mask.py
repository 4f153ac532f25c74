"""K4 as a card: slot lists copied, visibility packed to bits, 64 a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from aerie.fpga.rtl.card import BYTE, DOUBLE, SINGLE, CardEngine, counted_loop
from aerie.fpga.rtl.checks import (
    BROKEN_LAYOUT,
    KV_CAPACITY,
    MASK_CAPACITY,
    MAX_VERIFY,
    ROW_CAPACITY,
    table_refusal,
)

WORD = 64


class BitPacker(wiring.Component):
    """The bits of rows x (prefix + rows), row by row: ones for the prefix, then ancestor bits.

    Up to 64 bits enter and leave a buffer every cycle; what is asked for beyond the last bit is 0.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "i_start": In(1),
                "i_rows": In(8),
                "i_prefix": In(32),
                "o_row": Out(7),
                "i_ancestors": In(MAX_VERIFY),
                "i_is_word": In(1),  # 64 bits are taken, else 8
                "o_valid": Out(1),
                "i_take": In(1),
                "o_bits": Out(WORD),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """A generator of chunks and a buffer they are shifted into."""
        m = Module()
        row, column = Signal(8), Signal(32)
        level, buffer = Signal(8), Signal(2 * WORD)
        is_spent = row == self.i_rows
        is_prefix = column < self.i_prefix
        in_tree = (column - self.i_prefix)[0:8]
        left = Mux(is_prefix, self.i_prefix - column, self.i_rows - in_tree)
        size = Signal(7)
        m.d.comb += [
            self.o_row.eq(row[0:7]),
            size.eq(Mux(is_spent, 0, Mux(left > WORD, WORD, left))),
        ]
        bits = Mux(is_prefix, ~Const(0, MAX_VERIFY), self.i_ancestors >> in_tree)
        chunk = Signal(WORD)
        m.d.comb += chunk.eq(bits[0:WORD] & ((1 << size) - 1))
        needed = Mux(self.i_is_word, WORD, 8)
        m.d.comb += [
            self.o_valid.eq((level >= needed) | is_spent),
            self.o_bits.eq(buffer[0:WORD]),
        ]
        moves = self.o_valid & self.i_take
        taken, kept = Signal(7), Signal(8)
        m.d.comb += [
            taken.eq(Mux(moves, needed, 0)),
            kept.eq(Mux(level > taken, level - taken, 0)),
        ]
        fits = kept + size <= 2 * WORD
        adds = fits & ~is_spent
        m.d.sync += [
            level.eq(kept + Mux(adds, size, 0)),
            buffer.eq((buffer >> taken) | Mux(adds, chunk << kept, 0)),
        ]
        is_row_end = ~is_prefix & (in_tree + size == self.i_rows)
        with m.If(adds):
            m.d.sync += column.eq(Mux(is_row_end, 0, column + size))
            m.d.sync += row.eq(row + is_row_end)
        with m.If(self.i_start):
            m.d.sync += [row.eq(0), column.eq(0), level.eq(0), buffer.eq(0)]
        return m


class TreeMask(CardEngine):
    """KV slot lists and packed masks of a batch."""

    ARGUMENTS = ("B", "R", "P", "L", "kv_capacity", "mask_capacity")
    PORTS = (
        "req_to_token",
        "req_pool_indices",
        "seq_len",
        "qo_indptr",
        "ancestor_bits",
        "kv_indptr",
        "kv_indices",
        "mask_indptr",
        "packed_mask",
        "status",
    )

    def body(self, m: Module) -> None:
        """Offsets first, request after request, then what no request needed."""
        m.submodules.packer = self.packer = BitPacker()
        m.submodules.bits = bits = Memory(shape=MAX_VERIFY, depth=MAX_VERIFY, init=[])
        self.bits_in, self.bits_out = bits.write_port(), bits.read_port(domain="comb")
        m.d.comb += [
            self.bits_out.addr.eq(self.packer.o_row),
            self.packer.i_ancestors.eq(self.bits_out.data),
        ]
        self.request, self.place = Signal(8), Signal(32)
        self.first, self.highest = Signal(signed(33)), Signal(signed(33))
        self.count, self.word = Signal(8), Signal(64)
        self.prefix, self.pool = Signal(signed(64)), Signal(signed(64))
        self.slots, self.bytes = Signal(32), Signal(32)
        self.asked_slots, self.asked_bytes = Signal(40), Signal(40)
        self.columns, self.n_bytes, self.refusal = Signal(32), Signal(32), Signal(8)
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += [self.request.eq(0), self.slots.eq(0), self.bytes.eq(0)]
                m.d.sync += [self.asked_slots.eq(0), self.asked_bytes.eq(0)]
                m.d.sync += self.highest.eq(-(1 << 31))
                m.next = "ASK_FIRST"
            with m.State("ASK_FIRST"):
                with m.If(self.reads(m, "qo_indptr", Const(0), Const(1), SINGLE)):
                    m.next = "TAKE_FIRST"
            with m.State("TAKE_FIRST"):
                is_there, value = self.takes(m)
                with m.If(is_there):
                    m.d.sync += self.first.eq(value[0:32].as_signed())
                    m.next = "OPEN_KV"
            self._zero(m, "OPEN_KV", "kv_indptr", "OPEN_MASK")
            self._zero(m, "OPEN_MASK", "mask_indptr", "REQUEST")
            self._ask(m)
            self._judge(m)
            self._copy(m)
            self._pack(m)
            self._close(m)
            self._fill(m)

    def _zero(self, m: Module, name: str, port: str, after: str) -> None:
        """The first entry of a list of offsets is 0."""
        with m.State(name), m.If(self.writes(m, port, Const(0), Const(1), SINGLE)):
            m.next = f"{name}_GIVE"
        with m.State(f"{name}_GIVE"), m.If(self.gives(m, Const(0))):
            m.next = after

    def _ask(self, m: Module) -> None:
        """Three scalars of a request, asked for together."""
        with m.State("REQUEST"):
            with m.If(self.request == self.argument("B")):
                m.next = "FILL_SLOTS"
            with m.Else():
                asked = self.reads(m, "qo_indptr", self.request + 1, Const(1), SINGLE)
                with m.If(asked):
                    m.next = "ASK_LENGTH"
        with m.State("ASK_LENGTH"):
            with m.If(self.reads(m, "seq_len", self.request, Const(1), DOUBLE)):
                m.next = "ASK_POOL"
        with m.State("ASK_POOL"):
            with m.If(self.reads(m, "req_pool_indices", self.request, Const(1), DOUBLE)):
                m.next = "TAKE_END"
        with m.State("TAKE_END"):
            is_there, value = self.takes(m)
            end = value[0:32].as_signed()
            is_falling = (
                (self.first < 0)
                | (self.first > end)
                | (end > self.argument("R")[0:32])
                | (self.first < self.highest)
            )
            n_rows = (end - self.first)[0:33]
            with m.If(is_there):
                m.d.sync += self.count.eq(n_rows[0:8])
                m.d.sync += self.refusal.eq(0)
                with m.If(is_falling):
                    m.d.sync += [self.refusal.eq(BROKEN_LAYOUT), self.count.eq(0)]
                with m.Elif(n_rows > MAX_VERIFY):
                    m.d.sync += [self.refusal.eq(ROW_CAPACITY), self.count.eq(0)]
                with m.If(self.first > self.highest):
                    m.d.sync += self.highest.eq(self.first)
                # Where its rows begin, kept until they are read; the next request begins here.
                m.d.sync += [self.word.eq(self.first), self.first.eq(end)]
                m.next = "TAKE_LENGTH"
        with m.State("TAKE_LENGTH"):
            is_there, value = self.takes(m)
            with m.If(is_there):
                m.d.sync += self.prefix.eq(value)
                m.next = "TAKE_POOL"
        with m.State("TAKE_POOL"):
            is_there, value = self.takes(m)
            with m.If(is_there):
                m.d.sync += self.pool.eq(value)
                m.next = "JUDGE"

    def _judge(self, m: Module) -> None:
        """Refusals in the card's order."""
        with m.State("JUDGE"):
            found = table_refusal(self, self.pool, self.prefix, self.count)
            with m.If(self.refusal == 0):
                m.d.sync += self.refusal.eq(found)
            columns = Signal(32)
            m.d.comb += columns.eq(self.prefix[0:31] + self.count)
            m.d.sync += [self.columns.eq(columns), self.n_bytes.eq((self.count * columns + 7) >> 3)]
            m.next = "CAPACITY"
        with m.State("CAPACITY"):
            asked_slots = self.asked_slots + self.columns
            asked_bytes = self.asked_bytes + self.n_bytes
            with m.If(self.refusal == 0):
                m.d.sync += [self.asked_slots.eq(asked_slots), self.asked_bytes.eq(asked_bytes)]
                with m.If(asked_slots > self.argument("kv_capacity")):
                    m.d.sync += self.refusal.eq(KV_CAPACITY)
                with m.Elif(asked_bytes > self.argument("mask_capacity")):
                    m.d.sync += self.refusal.eq(MASK_CAPACITY)
            m.next = "STATUS"
        with m.State("STATUS"):
            with m.If(self.writes(m, "status", self.request, Const(1), SINGLE)):
                m.next = "GIVE_STATUS"
        with m.State("GIVE_STATUS"), m.If(self.gives(m, self.refusal)):
            m.next = "ASK_BITS"
            with m.If((self.refusal != 0) | (self.columns == 0)):
                m.next = "CLOSE_KV"

    def _copy(self, m: Module) -> None:
        """Ancestor bits to the chip, slots from the table to the list."""
        with m.State("ASK_BITS"):
            first = self.word << 2
            with m.If(self.reads(m, "ancestor_bits", first, self.count << 2, SINGLE)):
                m.next = "ASK_SLOTS"
        with m.State("ASK_SLOTS"):
            row = self.pool[0:24] * self.argument("L")[0:24]
            with m.If(self.reads(m, "req_to_token", row, self.columns, SINGLE)):
                m.next = "TO_SLOTS"
        with m.State("TO_SLOTS"):
            with m.If(self.writes(m, "kv_indices", self.slots, self.columns, SINGLE)):
                m.next = "TAKE_BITS"
                with m.If(self.count == 0):
                    m.next = "SLOTS"
        words = Signal(96)
        with m.State("TAKE_BITS"):
            is_there, value = self.takes(m)
            m.d.comb += [
                self.bits_in.addr.eq(self.place[2:9]),
                self.bits_in.data.eq(Cat(words, value[0:32])),
                self.bits_in.en.eq(is_there & (self.place[0:2] == 3)),
            ]
            with m.If(is_there):
                m.d.sync += words.eq(Cat(words[32:], value[0:32]))
            with m.If(counted_loop(m, self.place, is_there, self.count << 2)):
                m.next = "SLOTS"
        with m.State("SLOTS"):
            is_there, value = self.takes(m)
            m.d.comb += [
                self.writer.i_valid.eq(is_there),
                self.writer.i_data.eq(value),
                self.reader.i_ready.eq(self.writer.o_ready),
                self.stall_write.eq(is_there & ~self.writer.o_ready),
            ]
            moves = is_there & self.writer.o_ready
            with m.If(counted_loop(m, self.place, moves, self.columns)):
                m.d.sync += self.slots.eq(self.slots + self.columns)
                m.d.comb += self.packer.i_start.eq(1)
                m.next = "HEAD"

    def _pack(self, m: Module) -> None:
        """Bytes up to a word's boundary, whole words, the bytes that are left."""
        left = Signal(32)
        base = self.argument("packed_mask_base")
        head = (8 - (base + self.bytes)[0:3])[0:3]
        n_head = Mux(head > self.n_bytes, self.n_bytes, head)
        m.d.comb += [
            self.packer.i_rows.eq(self.count),
            self.packer.i_prefix.eq(self.prefix[0:32]),
        ]
        steps = (
            ("HEAD", n_head, 0, "BODY"),
            ("BODY", left >> 3, 1, "TAIL"),
            ("TAIL", left, 0, "CLOSE_KV"),
        )
        m.d.comb += self.packer.i_is_word.eq(0)
        for name, count, is_word, after in steps:
            size = DOUBLE if is_word else BYTE
            with m.State(name):
                if name == "HEAD":
                    m.d.sync += left.eq(self.n_bytes - n_head)
                announced = self._announce(m, count, size)
                with m.If(count == 0):
                    m.d.comb += self.writer.command_valid.eq(0)
                    m.next = after
                with m.Elif(announced):
                    m.d.sync += self.word.eq(count)
                    m.next = f"{name}_GIVE"
            with m.State(f"{name}_GIVE"):
                moves = self._give_bits(m, is_word)
                with m.If(moves):
                    m.d.sync += self.bytes.eq(self.bytes + (8 if is_word else 1))
                    if name != "HEAD":
                        m.d.sync += left.eq(left - (8 if is_word else 1))
                with m.If(counted_loop(m, self.place, moves, self.word)):
                    m.next = after

    def _announce(self, m: Module, count: Value, size: int) -> Value:
        """Words begin at a multiple of eight bytes, which need not be one of the array's."""
        command = self.writer
        address = (self.argument("packed_mask_base") + self.bytes)[0:40]
        m.d.comb += [
            command.command_valid.eq(1),
            command.command_address.eq(address),
            command.command_count.eq(count),
            command.command_size.eq(size),
            self.downstream_full.eq(~command.command_ready),
        ]
        return command.command_ready

    def _give_bits(self, m: Module, is_word: int) -> Value:
        packer = self.packer
        m.d.comb += [
            packer.i_is_word.eq(is_word),
            packer.i_take.eq(self.writer.o_ready),
            self.writer.i_valid.eq(packer.o_valid),
            self.writer.i_data.eq(packer.o_bits if is_word else packer.o_bits[0:8]),
            self.upstream_empty.eq(~packer.o_valid),
            self.stall_write.eq(packer.o_valid & ~self.writer.o_ready),
        ]
        moves = packer.o_valid & self.writer.o_ready
        if is_word:
            m.d.comb += [self.items.eq(moves), self.item_cycles.eq(1)]
        return moves

    def _close(self, m: Module) -> None:
        """Where the next request's entries begin."""
        for name, port, value, after in (
            ("CLOSE_KV", "kv_indptr", self.slots, "CLOSE_MASK"),
            ("CLOSE_MASK", "mask_indptr", self.bytes, "NEXT"),
        ):
            with m.State(name):
                with m.If(self.writes(m, port, self.request + 1, Const(1), SINGLE)):
                    m.next = f"{name}_GIVE"
            with m.State(f"{name}_GIVE"), m.If(self.gives(m, value)):
                m.next = after
        with m.State("NEXT"):
            m.d.sync += self.request.eq(self.request + 1)
            m.next = "REQUEST"

    def _fill(self, m: Module) -> None:
        """Unused slots are -1, unused mask bytes 0."""
        slots_left = Signal(32)
        m.d.comb += slots_left.eq(self.argument("kv_capacity") - self.slots)
        with m.State("FILL_SLOTS"):
            with m.If(slots_left == 0):
                m.next = "FILL_MASK"
            with m.Else(), m.If(self.writes(m, "kv_indices", self.slots, slots_left, SINGLE)):
                m.d.sync += self.word.eq(slots_left)
                m.next = "FILL_SLOTS_GIVE"
        with m.State("FILL_SLOTS_GIVE"):
            gave = self.gives(m, Const(0xFFFFFFFF, 32))
            with m.If(counted_loop(m, self.place, gave, self.word)):
                m.next = "FILL_MASK"
        bytes_left = Signal(32)
        m.d.comb += bytes_left.eq(self.argument("mask_capacity") - self.bytes)
        with m.State("FILL_MASK"):
            with m.If(bytes_left == 0):
                m.next = "DRAIN"
            with m.Else(), m.If(self.writes(m, "packed_mask", self.bytes, bytes_left, BYTE)):
                m.d.sync += self.word.eq(bytes_left)
                m.next = "FILL_MASK_GIVE"
        with m.State("FILL_MASK_GIVE"):
            gave = self.gives(m, Const(0))
            with m.If(counted_loop(m, self.place, gave, self.word)):
                m.next = "DRAIN"
        with m.State("DRAIN"):
            self.finishes(m, Const(1))
            with m.If(self.done):
                m.next = "IDLE"
