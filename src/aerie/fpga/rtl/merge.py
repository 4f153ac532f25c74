"""K2's running order as a card: two descending runs of scores merged, one score a cycle."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib.memory import Memory

from aerie.fpga.rtl.card import SINGLE, CardEngine, counted_loop
from aerie.fpga.rtl.floats import FLOAT, flushed, key_of


class ScoreMerge(CardEngine):
    """sort_scores becomes the best `new_count` of itself and the layer's; older entries first."""

    ARGUMENTS = ("B", "M", "n", "old_count", "new_count")
    PORTS = ("status", "sort_scores", "sort_layer_scores")

    def __init__(self, most_old: int = 128, most_new: int = 64) -> None:
        self.most_old = most_old
        self.most_new = most_new
        super().__init__()

    def body(self, m: Module) -> None:
        """Request after request: both runs to the chip, then the merge."""
        batch = self.argument("B")
        m.submodules.old = old = Memory(shape=FLOAT, depth=self.most_old, init=[])
        m.submodules.new = new = Memory(shape=FLOAT, depth=self.most_new, init=[])
        self.runs = (
            (old.write_port(), old.read_port(domain="comb")),
            (new.write_port(), new.read_port(domain="comb")),
        )
        request, place = Signal(8), Signal(8)
        old_first, new_first = Signal(32), Signal(32)
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += [request.eq(0), old_first.eq(0), new_first.eq(0)]
                m.next = "STATUS"
            with m.State("STATUS"):
                with m.If(request == batch):
                    m.next = "DRAIN"
                with m.Else(), m.If(self.reads(m, "status", request, Const(1), SINGLE)):
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                is_there, word = self.takes(m)
                with m.If(is_there):
                    m.next = "ASK_OLD"
                    # A refused request keeps its order.
                    with m.If(word[0:32] != 0):
                        m.next = "NEXT"
            with m.State("ASK_OLD"):
                count = self.argument("old_count")
                with m.If(self.reads(m, "sort_scores", old_first, count, SINGLE)):
                    m.next = "ASK_NEW"
            with m.State("ASK_NEW"):
                count = self.argument("n")
                with m.If(self.reads(m, "sort_layer_scores", new_first, count, SINGLE)):
                    m.next = "LOAD_OLD"
            for number, (name, after) in enumerate(
                (("LOAD_OLD", "LOAD_NEW"), ("LOAD_NEW", "ANNOUNCE"))
            ):
                self._load(m, number, name, after, place)
            with m.State("ANNOUNCE"):
                count = self.argument("new_count")
                with m.If(self.writes(m, "sort_scores", old_first, count, SINGLE)):
                    m.next = "MERGE"
            self._merge(m, place)
            with m.State("NEXT"):
                m.d.sync += [
                    request.eq(request + 1),
                    old_first.eq(old_first + self.argument("M")),
                    new_first.eq(new_first + self.argument("n")),
                ]
                m.next = "STATUS"
            with m.State("DRAIN"):
                self.finishes(m, Const(1))
                with m.If(self.done):
                    m.next = "IDLE"

    def _load(self, m: Module, number: int, name: str, after: str, place: Signal) -> None:
        store, _ = self.runs[number]
        count = self.argument("old_count" if number == 0 else "n")
        with m.State(name):
            is_there, score = self.takes(m)
            m.d.comb += [
                store.addr.eq(place),
                store.data.eq(flushed(score[0:FLOAT])),
                store.en.eq(is_there),
            ]
            with m.If(counted_loop(m, place, is_there, count)):
                m.next = after

    def _merge(self, m: Module, place: Signal) -> None:
        old_at, new_at = Signal(8), Signal(8)
        (_, old), (_, new) = self.runs
        has_old = old_at < self.argument("old_count")
        has_new = new_at < self.argument("n")
        takes_new = ~has_old | (has_new & (key_of(new.data) > key_of(old.data)))
        with m.State("MERGE"):
            m.d.comb += [old.addr.eq(old_at), new.addr.eq(new_at), self.item_cycles.eq(1)]
            gave = self.gives(m, Mux(takes_new, new.data, old.data))
            m.d.comb += self.items.eq(gave)
            with m.If(gave):
                m.d.sync += [old_at.eq(old_at + ~takes_new), new_at.eq(new_at + takes_new)]
            with m.If(counted_loop(m, place, gave, self.argument("new_count"))):
                m.d.sync += [old_at.eq(0), new_at.eq(0)]
                m.next = "NEXT"
