"""What every card is made of: registers, one element port to memory, and a body that uses them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Member

from aerie.fpga.rtl.axi import WORD, Reader, Writer
from aerie.fpga.rtl.bursts import ADDRESS, read_members, write_members
from aerie.fpga.rtl.registers import ARGUMENT, Registers, lite_members

BYTE, HALF, SINGLE, DOUBLE = 0, 1, 2, 3  # log2 of an element's bytes


class CardEngine(wiring.Component, ABC):
    """A kernel as a card: the host writes sizes and addresses, starts it and waits.

    A subclass names its `ARGUMENTS` (scalars) and `PORTS` (arrays, whose addresses are arguments
    too) and writes `body`. Every access to memory goes through `reads` and `writes`.
    """

    ARGUMENTS: Sequence[str] = ()
    PORTS: Sequence[str] = ()
    constants: Mapping[str, int] = {}  # arguments that are built in and have no register

    def __init__(self, extra: dict[str, Member] | None = None) -> None:
        super().__init__(
            {
                **lite_members(),
                **read_members("m_axi", WORD),
                **write_members("m_axi", WORD),
                **(extra or {}),
            }
        )

    @classmethod
    def arguments(cls) -> list[str]:
        """Registers in the order of the map."""
        return [*cls.ARGUMENTS, *(f"{name}_base" for name in cls.PORTS)]

    def fixing(self, constants: Mapping[str, int]) -> Self:
        """The card for one model: these arguments are constants, which synthesis folds away."""
        assert set(constants) <= set(self.arguments()), f"{constants} are no arguments of this card"
        self.constants = dict(constants)
        return self

    def open_arguments(self) -> list[str]:
        """Registers of this very card."""
        return [name for name in self.arguments() if name not in self.constants]

    def elaborate(self, platform: object) -> Module:
        """Wire the parts, then the body."""
        m = Module()
        self.registers = registers = Registers(self.open_arguments())
        self.reader, self.writer = Reader(), Writer()
        m.submodules.registers = registers
        m.submodules.reader, m.submodules.writer = self.reader, self.writer
        own = self.signature.members
        for name in lite_members():
            self._join(m, name, registers)
        for part, members in (
            (self.reader, read_members("m_axi", WORD)),
            (self.writer, write_members("m_axi", WORD)),
        ):
            for name in members:
                assert name in own
                self._join(m, name, part)
        self.start, self.done = registers.o_start, Signal()
        # What stalls a cycle is said where it happens; at most one of them is.
        self.stall_read, self.stall_write = Signal(), Signal()
        self.upstream_empty, self.downstream_full = Signal(), Signal()
        self.items, self.item_cycles = Signal(8), Signal()
        self.extra_in, self.extra_out = Signal(8), Signal(8)
        is_stalled = self.stall_read | self.stall_write | self.upstream_empty | self.downstream_full
        m.d.comb += [
            registers.i_done.eq(self.done),
            registers.i_bytes_in.eq(self.reader.o_bytes + self.extra_in),
            registers.i_bytes_out.eq(self.writer.o_bytes + self.extra_out),
            registers.i_busy.eq(~is_stalled),
            registers.i_stall_memory_read.eq(self.stall_read),
            registers.i_stall_memory_write.eq(self.stall_write & ~self.stall_read),
            registers.i_upstream_empty.eq(
                self.upstream_empty & ~self.stall_read & ~self.stall_write
            ),
            registers.i_downstream_full.eq(
                self.downstream_full & ~self.upstream_empty & ~self.stall_read & ~self.stall_write
            ),
            registers.i_items.eq(self.items),
            registers.i_item_cycles.eq(self.item_cycles),
        ]
        self.body(m)
        return m

    @abstractmethod
    def body(self, m: Module) -> None:
        """The kernel; every card has its own."""

    def _join(self, m: Module, name: str, part: wiring.Component) -> None:
        outer, inner = getattr(self, name), getattr(part, name)
        is_output = self.signature.members[name].flow == wiring.Out
        m.d.comb += outer.eq(inner) if is_output else inner.eq(outer)

    def argument(self, name: str) -> Value:
        """One of the card's arguments."""
        if name in self.constants:
            return Const(self.constants[name], ARGUMENT)
        return self.registers.argument(name)

    def address(self, port: str, index: Value, size: int) -> Value:
        """Of an element of a port."""
        return (self.argument(f"{port}_base") + (index << size))[0:ADDRESS]

    def reads(self, m: Module, port: str, index: Value, count: Value, size: int) -> Value:
        """Ask for elements of a port, in the state that says so; true once the asking is done."""
        command = self.reader
        m.d.comb += [
            command.command_valid.eq(1),
            command.command_address.eq(self.address(port, index, size)),
            command.command_count.eq(count),
            command.command_size.eq(size),
            self.downstream_full.eq(~command.command_ready),
        ]
        return command.command_ready

    def writes(self, m: Module, port: str, index: Value, count: Value, size: int) -> Value:
        """Announce elements of a port; true once the announcement is taken."""
        command = self.writer
        m.d.comb += [
            command.command_valid.eq(1),
            command.command_address.eq(self.address(port, index, size)),
            command.command_count.eq(count),
            command.command_size.eq(size),
            self.downstream_full.eq(~command.command_ready),
        ]
        return command.command_ready

    def takes(self, m: Module) -> tuple[Value, Value]:
        """Take the next element asked for: whether it is there, and the element."""
        m.d.comb += [self.reader.i_ready.eq(1), self.stall_read.eq(~self.reader.o_valid)]
        return self.reader.o_valid, self.reader.o_data

    def gives(self, m: Module, value: Value) -> Value:
        """Give the next element announced; true once it is taken."""
        m.d.comb += [
            self.writer.i_valid.eq(1),
            self.writer.i_data.eq(value),
            self.stall_write.eq(~self.writer.o_ready),
        ]
        return self.writer.o_ready

    def finishes(self, m: Module, quiet: Value) -> None:
        """In the last state: done once everything has left."""
        is_quiet = self.writer.o_idle & self.reader.o_idle & quiet
        m.d.comb += [self.done.eq(is_quiet), self.stall_write.eq(~is_quiet)]


def counted_loop(m: Module, counter: Signal, moves: Value, count: Value) -> Value:
    """Advance a counter on every move; true on the move that is the last of `count`."""
    is_last = moves & (counter + 1 == count)
    with m.If(moves):
        m.d.sync += counter.eq(Mux(is_last, 0, counter + 1))
    return is_last
