"""The lists that K7 appends to, request after request, and their ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed
from amaranth.lib.memory import Memory

from aerie.fpga.rtl.card import BYTE, DOUBLE, SINGLE, CardEngine, counted_loop
from aerie.fpga.rtl.checks import MAX_VERIFY

MINUS_ONE = (1 << 64) - 1
MAX_STOPS = 64


@dataclass(frozen=True, eq=False)
class ListJob:
    """`count` elements behind the head of a list, and the state that follows."""

    state: str
    port: str
    head: Signal
    count: Value
    size: int
    after: str


class CommitLists(CardEngine):
    """The state of a commit, and everything it writes once a request is judged."""

    def _signals(self, m: Module) -> None:
        self._memories(m)
        self.request, self.place = Signal(8), Signal(16)
        self.first, self.highest = Signal(signed(33)), Signal(signed(33))
        self.row, self.n_rows = Signal(32), Signal(8)
        self.scalars = {
            name: Signal(signed(64), name=name)
            for name in ("prefix", "pool", "accepted", "limit", "bonus")
        }
        self.refusal, self.is_last, self.length = Signal(8), Signal(), Signal(64)
        self.emitted, self.kept, self.room = Signal(8), Signal(8), Signal(signed(65))
        self.heads = {
            name: Signal(16, name=f"head_{name}")
            for name in ("tokens", "rows", "moves", "freed", "unfinished")
        }

    def _memories(self, m: Module) -> None:
        m.submodules.path = path = Memory(shape=64, depth=MAX_VERIFY, init=[])
        m.submodules.slots = slots = Memory(shape=32, depth=MAX_VERIFY, init=[])
        m.submodules.stops = stops = Memory(shape=64, depth=MAX_STOPS, init=[])
        m.submodules.run = run = Memory(shape=64, depth=MAX_VERIFY, init=[])
        self.path_in, self.path_out = path.write_port(), path.read_port(domain="comb")
        self.slots_in, self.slots_out = slots.write_port(), slots.read_port(domain="comb")
        self.stops_in, self.stops_out = stops.write_port(), stops.read_port(domain="comb")
        self.run_in, self.run_out = run.write_port(), run.read_port(domain="comb")

    def _one(
        self, m: Module, name: str, port: str, index: Value, value: Value, size: int, after: str
    ) -> None:
        """Write one element, then go on."""
        with m.State(name), m.If(self.writes(m, port, index, Const(1), size)):
            m.next = f"{name}_GIVE"
        with m.State(f"{name}_GIVE"), m.If(self.gives(m, value)):
            m.next = after

    def _list(self, m: Module, job: ListJob, value: Callable[[], Value]) -> None:
        """Append elements to a list; nothing is announced for none."""
        with m.State(job.state):
            with m.If(job.count == 0):
                m.next = job.after
            with m.Else(), m.If(self.writes(m, job.port, job.head, job.count, job.size)):
                m.next = f"{job.state}_GIVE"
        with m.State(f"{job.state}_GIVE"):
            gave = self.gives(m, value())
            m.d.comb += [self.items.eq(gave), self.item_cycles.eq(1)]
            with m.If(counted_loop(m, self.place, gave, job.count)):
                m.d.sync += job.head.eq(job.head + job.count)
                m.next = job.after

    def _lists(self, m: Module) -> None:
        """Tokens; rows of those that go on; moves into place; freed slots."""
        heads = self.heads

        def emitted() -> Value:
            m.d.comb += self.run_out.addr.eq(self.place)
            return self.run_out.data

        def kept_row() -> Value:
            m.d.comb += self.path_out.addr.eq(self.place)
            return self.row + self.path_out.data

        def freed() -> Value:
            m.d.comb += self.slots_out.addr.eq(self.kept + self.place)
            return self.slots_out.data

        going = Mux(self.is_last, 0, 1)
        n_rows = Mux(self.is_last, 0, self.kept)
        n_freed = (self.n_rows - self.kept)[0:8]
        jobs: tuple[tuple[ListJob, Callable[[], Value]], ...] = (
            (ListJob("GIVE_TOKENS", "out_tokens", heads["tokens"], self.emitted, DOUBLE,
                     "GIVE_UNFINISHED"), emitted),
            (ListJob("GIVE_UNFINISHED", "unfinished", heads["unfinished"], going, DOUBLE,
                     "GIVE_ROWS"), lambda: self.request),
            (ListJob("GIVE_ROWS", "out_rows", heads["rows"], n_rows, DOUBLE, "COUNT_MOVES"),
             kept_row),
            (ListJob("GIVE_FREE", "free", heads["freed"], n_freed, SINGLE, "CLOSE_LENGTH"),
             freed),
        )  # fmt: skip
        for job, value in jobs:
            self._list(m, job, value)
        self._moves(m)

    def _moves(self, m: Module) -> None:
        """Rows that are not in place yet: counted, then their sources, then their targets."""
        n_moves = Signal(8)
        is_move = self.path_out.data != self.place
        with m.State("COUNT_MOVES"):
            m.d.comb += self.path_out.addr.eq(self.place)
            with m.If(self.place == 0):
                m.d.sync += n_moves.eq(is_move)
            with m.Else():
                m.d.sync += n_moves.eq(n_moves + is_move)
            with m.If(counted_loop(m, self.place, Const(1), self.kept)):
                m.next = "SOURCES"
        for name, port, after in (
            ("SOURCES", "kv_src", "TARGETS"),
            ("TARGETS", "kv_dst", "GIVE_FREE"),
        ):
            with m.State(name):
                with m.If(n_moves == 0):
                    m.next = "GIVE_FREE"
                with m.Else(), m.If(self.writes(m, port, self.heads["moves"], n_moves, SINGLE)):
                    m.next = f"{name}_GIVE"
            with m.State(f"{name}_GIVE"):
                m.d.comb += self.path_out.addr.eq(self.place)
                slot = self.path_out.data[0:7] if name == "SOURCES" else self.place[0:7]
                m.d.comb += [
                    self.slots_out.addr.eq(slot),
                    self.writer.i_valid.eq(is_move),
                    self.writer.i_data.eq(self.slots_out.data),
                    self.stall_write.eq(is_move & ~self.writer.o_ready),
                ]
                moves = ~is_move | self.writer.o_ready
                with m.If(counted_loop(m, self.place, moves, self.kept)):
                    m.next = after
                    if name == "TARGETS":
                        m.d.sync += self.heads["moves"].eq(self.heads["moves"] + n_moves)

    def _close(self, m: Module) -> None:
        """What every request writes, refused or not."""
        heads = self.heads
        following = self.request + 1
        chain: tuple[tuple[str, str, Value, Value, int, str], ...] = (
            ("CLOSE_LENGTH", "new_seq_len", self.request, self.length, DOUBLE, "CLOSE_FINISHED"),
            ("CLOSE_FINISHED", "finished", self.request, self.is_last, BYTE, "CLOSE_TOKENS"),
            ("CLOSE_TOKENS", "out_indptr", following, heads["tokens"], SINGLE, "CLOSE_ROWS"),
            ("CLOSE_ROWS", "rows_indptr", following, heads["rows"], SINGLE, "NEXT"),
        )
        for name, port, index, value, size, after in chain:
            self._one(m, name, port, index, value, size, after)
        with m.State("NEXT"):
            m.d.sync += self.request.eq(following)
            m.next = "REQUEST"

    def _finish(self, m: Module) -> None:
        """Lists are filled with -1 to their ends; then the counts."""
        runs = (self.argument("B") * (self.argument("D") + 1))[0:24]
        heads = self.heads
        fills: tuple[tuple[str, str, Signal, Value, int], ...] = (
            ("FILL_TOKENS", "out_tokens", heads["tokens"], runs, DOUBLE),
            ("FILL_ROWS", "out_rows", heads["rows"], runs, DOUBLE),
            ("FILL_SRC", "kv_src", heads["moves"], runs, SINGLE),
            ("FILL_DST", "kv_dst", heads["moves"], runs, SINGLE),
            ("FILL_UNFINISHED", "unfinished", heads["unfinished"], self.argument("B"), DOUBLE),
            ("FILL_FREE", "free", heads["freed"], self.argument("R"), SINGLE),
        )
        names = [entry[0] for entry in fills] + ["COUNT_UNFINISHED"]
        for place, (name, port, head, whole, size) in enumerate(fills):
            left = Signal(32, name=f"left_{name.lower()}")
            m.d.comb += left.eq(whole - head)
            with m.State(name):
                with m.If(left == 0):
                    m.next = names[place + 1]
                with m.Else(), m.If(self.writes(m, port, head, left, size)):
                    m.next = f"{name}_GIVE"
            with m.State(f"{name}_GIVE"):
                gave = self.gives(m, Const(MINUS_ONE, 64))
                with m.If(counted_loop(m, self.place, gave, left)):
                    m.next = names[place + 1]
        zero = Const(0)
        self._one(m, "COUNT_UNFINISHED", "unfinished_count", zero, heads["unfinished"], SINGLE,
                  "COUNT_MOVED")  # fmt: skip
        self._one(m, "COUNT_MOVED", "move_count", zero, heads["moves"], SINGLE, "COUNT_FREED")
        self._one(m, "COUNT_FREED", "free_count", zero, heads["freed"], SINGLE, "DRAIN")
        with m.State("DRAIN"):
            self.finishes(m, Const(1))
            with m.If(self.done):
                m.next = "IDLE"
