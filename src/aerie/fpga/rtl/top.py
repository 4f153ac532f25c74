"""K1, K2's merge, K3 and the gather in one card: a draft's levels with their state on chip."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from aerie.fpga.rtl.bursts import read_members, write_members
from aerie.fpga.rtl.card import DOUBLE, SINGLE, CardEngine, counted_loop
from aerie.fpga.rtl.deltas import FIXED, MOST_NEW, MeanOf, gain_step
from aerie.fpga.rtl.floats import FLOAT, ONE, Multiplier, bits_of_key, clamped_probability, key_of
from aerie.fpga.rtl.gather import MOST_CHILDREN, Gather
from aerie.fpga.rtl.sorter import Sorter

MOST_KEPT = 128  # running scores of a request


class TreeTop(CardEngine):
    """Level after level, request after request: score, sort, store, weigh, merge, gather.

    Probabilities come in as a head gives them; frontier scores, running orders and gains stay on
    chip. Out go the nodes' scores, the next frontiers and their parents, the gains of each level,
    the hidden rows of the next frontier, and at the end the running orders.
    """

    ARGUMENTS = ("B", "D", "K", "verify_num", "row_beats")
    PORTS = (
        "widths", "level_probas", "input_hidden", "node_scores", "frontier_nodes",
        "parent_slots", "output_hidden", "G", "sort_scores",
    )  # fmt: skip

    def __init__(
        self,
        candidates: int = 64,
        batch: int = 128,
        bus: int = 256,
        most_beats: int = 512,
        instance: bool = False,
    ) -> None:
        self.candidates = candidates
        self.batch = batch
        self.bus = bus
        self.most_beats = most_beats
        self.index = (candidates - 1).bit_length()
        self.instance = instance
        super().__init__({**read_members("g_axi", bus), **write_members("g_axi", bus)})

    def body(self, m: Module) -> None:
        """The levels, then the running orders."""
        self._parts(m)
        self.level, self.request, self.place = Signal(8), Signal(8), Signal(16)
        self.width, self.n = Signal(4), Signal(8)
        self.read_at, self.node_at, self.best_at = Signal(32), Signal(32), Signal(32)
        self.row_at, self.child_at, self.gain_at = Signal(32), Signal(32), Signal(32)
        self.count, self.kept_old, self.kept_new = Signal(16), Signal(8), Signal(8)
        self.slot, self.in_slot = Signal(4), Signal(4)
        self.gains = Array(Signal(FIXED, name=f"gain_{k}") for k in range(MOST_NEW + 1))
        self.scores = Signal(self.candidates * FLOAT)
        self.sorted = Signal(self.candidates * (FLOAT + self.index))
        self._vector(m)
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += [self.level.eq(0), self.count.eq(1), self.request.eq(0)]
                for at in (self.read_at, self.node_at, self.best_at, self.row_at, self.gain_at):
                    m.d.sync += at.eq(0)
                m.d.sync += self.child_at.eq(0)
                m.next = "LEVEL"
            self._levels(m)
            self._load(m)
            self._store(m)
            self._weigh(m)
            self._merge(m)
            self._hand_on(m)
            self._means(m)
            self._end(m)

    def _parts(self, m: Module) -> None:
        m.submodules.multiplier = self.multiplier = Multiplier(self.index)
        m.submodules.sorter = self.sorter = Sorter(
            self.candidates, FLOAT + self.index, instance=self.instance
        )
        m.submodules.gather = self.gather = Gather(self.bus, self.most_beats)
        m.submodules.mean = self.mean = MeanOf()
        for name in (*read_members("g_axi", self.bus), *write_members("g_axi", self.bus)):
            self._join(m, name, self.gather)
        # Both banks of each take turns: a level reads one and writes the other.
        m.submodules.frontier = frontier = Memory(shape=FLOAT, depth=32 * self.batch, init=[])
        m.submodules.running = running = Memory(
            shape=FLOAT, depth=2 * MOST_KEPT * self.batch, init=[]
        )
        m.submodules.slots = slots = Memory(shape=4, depth=self.candidates, init=[])
        # Block RAM: asked in one cycle, answered in the next.
        self.frontier_in, self.frontier_out = frontier.write_port(), frontier.read_port()
        self.running_in, self.running_out = running.write_port(), running.read_port()
        self.slots_in, self.slots_out = slots.write_port(), slots.read_port(domain="comb")
        m.d.comb += [
            self.gather.i_target_base.eq(self.argument("output_hidden_base")),
            self.gather.i_source_base.eq(self.argument("input_hidden_base")),
            self.gather.i_beats.eq(self.argument("row_beats")),
            self.extra_in.eq(self.gather.o_bytes_in),
            self.extra_out.eq(self.gather.o_bytes_out),
            self.items.eq(self.gather.o_moves),
            self.item_cycles.eq(self.gather.o_moves | self.gather.o_stall_write),
        ]

    def _vector(self, m: Module) -> None:
        for place in range(self.candidates):
            with m.If(self.multiplier.o_valid & (self.multiplier.o_tag == place)):
                m.d.sync += self.scores.word_select(place, FLOAT).eq(self.multiplier.o_product)
            key = key_of(self.scores.word_select(place, FLOAT))
            whole = Cat(Const(self.candidates - 1 - place, self.index), key)
            record = self.sorter.i_records.word_select(place, FLOAT + self.index)
            m.d.comb += record.eq(Mux(place < self.n, whole, 0))

    def _bank(self, is_next: int) -> Value:
        return self.level[0] ^ is_next

    def _levels(self, m: Module) -> None:
        with m.State("LEVEL"):
            with m.If(self.level == self.argument("D")):
                m.next = "ORDERS"
            with m.Else(), m.If(self.reads(m, "widths", self.level, Const(1), SINGLE)):
                m.next = "TAKE_WIDTH"
        with m.State("TAKE_WIDTH"):
            is_there, width = self.takes(m)
            with m.If(is_there):
                verify = self.argument("verify_num")
                n = (width[0:4] * self.argument("K")[0:4])[0:8]
                m.d.sync += [self.width.eq(width), self.n.eq(n), self.request.eq(0)]
                m.d.sync += [gain.eq(0) for gain in self.gains]
                m.d.sync += self.kept_old.eq(Mux(self.count < verify, self.count, verify))
                after = self.count + n
                m.d.sync += self.kept_new.eq(Mux(after < verify, after, verify))
                m.next = "REQUEST"

    def _load(self, m: Module) -> None:
        """Probabilities times the frontier's scores; the root's score is 1."""
        with m.State("REQUEST"):
            with m.If(self.request == self.argument("B")):
                m.next = "ANNOUNCE_GAINS"
            with m.Else(), m.If(self.reads(m, "level_probas", self.read_at, self.n, SINGLE)):
                m.d.sync += [self.read_at.eq(self.read_at + self.n)]
                m.d.sync += [self.slot.eq(0), self.in_slot.eq(0)]
                m.d.comb += [
                    self.frontier_out.addr.eq(Cat(Const(0, 4), self._bank(0), self.request)),
                    self.frontier_out.en.eq(1),
                ]
                m.next = "PROBAS"
        with m.State("PROBAS"):
            is_there, proba = self.takes(m)
            is_first = self.level == 0
            # The score of the next slot is asked for with the last child of this one.
            ends = is_there & (self.in_slot + 1 == self.argument("K"))
            ahead = (self.slot + ends)[0:4]
            m.d.comb += [
                self.frontier_out.addr.eq(Cat(ahead, self._bank(0), self.request)),
                self.frontier_out.en.eq(1),
                self.multiplier.i_valid.eq(is_there),
                self.multiplier.i_x.eq(clamped_probability(proba[0:FLOAT])),
                self.multiplier.i_y.eq(Mux(is_first, ONE, self.frontier_out.data)),
                self.multiplier.i_tag.eq(self.place),
                self.slots_in.addr.eq(self.place),
                self.slots_in.data.eq(self.slot),
                self.slots_in.en.eq(is_there),
            ]
            with m.If(is_there):
                m.d.sync += self.in_slot.eq(self.in_slot + 1)
                with m.If(ends):
                    m.d.sync += [self.in_slot.eq(0), self.slot.eq(ahead)]
            with m.If(counted_loop(m, self.place, is_there, self.n)):
                m.next = "MULTIPLY"
        wait = Signal(range(Multiplier.LATENCY + 1))
        with m.State("MULTIPLY"):
            m.d.sync += wait.eq(wait + 1)
            with m.If(wait == Multiplier.LATENCY):
                m.d.sync += wait.eq(0)
                m.d.comb += self.sorter.i_valid.eq(1)
                m.next = "SORT"
        with m.State("SORT"):
            m.d.comb += self.upstream_empty.eq(~self.sorter.o_valid)
            with m.If(self.sorter.o_valid):
                m.d.sync += self.sorted.eq(self.sorter.o_records)
                m.next = "NODES"

    def _here(self) -> tuple[Value, Value]:
        """Score and candidate at the place of the sorted order."""
        record = self.sorted.word_select(self.place[0 : self.index], FLOAT + self.index)
        candidate = (self.candidates - 1 - record[0 : self.index])[0 : self.index]
        return bits_of_key(record[self.index :]), candidate

    def _store(self, m: Module) -> None:
        """Scores of the new nodes, the next frontier's nodes and parents."""
        top_k = self.argument("K")
        score, candidate = self._here()
        current = self.scores.word_select(self.place[0 : self.index], FLOAT)
        m.d.comb += self.slots_out.addr.eq(candidate)
        results: tuple[tuple[str, str, Signal, Value, int, Value, str], ...] = (
            ("NODES", "node_scores", self.node_at, self.n, SINGLE, current, "BEST"),
            ("BEST", "frontier_nodes", self.best_at, top_k, DOUBLE, self.count + candidate,
             "PARENTS"),
            ("PARENTS", "parent_slots", self.best_at, top_k, DOUBLE, self.slots_out.data,
             "FIRST_OLD"),
        )  # fmt: skip
        for name, port, at, count, size, value, after in results:
            with m.State(name), m.If(self.writes(m, port, at, count, size)):
                m.next = f"{name}_GIVE"
            with m.State(f"{name}_GIVE"):
                gave = self.gives(m, value)
                if name == "BEST":
                    m.d.comb += [
                        self.frontier_in.addr.eq(Cat(self.place[0:4], self._bank(1), self.request)),
                        self.frontier_in.data.eq(score),
                        self.frontier_in.en.eq(gave),
                    ]
                with m.If(counted_loop(m, self.place, gave, count)):
                    m.next = after
                    if name == "NODES":
                        m.d.sync += at.eq(at + count)
                    if name == "PARENTS":
                        m.d.sync += at.eq(at + count)

    def _old(self, at: Value) -> Value:
        """Address of a running score of this level; the first level has the root's, which is 1."""
        return Cat(at[0:7], self._bank(0), self.request)

    def _old_score(self) -> Value:
        return Mux(self.level == 0, ONE, self.running_out.data)

    def _weigh(self, m: Module) -> None:
        """K3, one of the best new scores a cycle."""
        top_k = self.argument("K")
        mass, total = Signal(FIXED), Signal(FIXED)
        verify = self.argument("verify_num")
        with m.State("FIRST_OLD"):
            m.d.comb += [
                self.running_out.addr.eq(self._old((verify - 1)[0:8])),
                self.running_out.en.eq(1),
            ]
            m.next = "WEIGH"
        with m.State("WEIGH"):
            new, _ = self._here()
            old = self._old_score()
            is_free = self.kept_old + self.place < verify
            displaces = ~is_free & (self.place < verify) & (new > old)
            step = gain_step(new, old, is_free, displaces)
            m.d.comb += [
                total.eq(Mux(self.place == 0, 0, mass) + step),
                self.running_out.addr.eq(self._old((verify - 2 - self.place)[0:8])),
                self.running_out.en.eq(1),
            ]
            m.d.sync += mass.eq(total)
            m.d.sync += self.gains[self.place + 1].eq(self.gains[self.place + 1] + total)
            with m.If(counted_loop(m, self.place, Const(1), top_k)):
                # The merge begins with the first old score.
                m.d.comb += self.running_out.addr.eq(self._old(Const(0, 8)))
                m.next = "MERGE"

    def _merge(self, m: Module) -> None:
        """K2's running order, one score a cycle, into the other bank."""
        old_at, new_at, out_at = Signal(8), Signal(8), Signal(8)
        with m.State("MERGE"):
            record = self.sorted.word_select(new_at[0 : self.index], FLOAT + self.index)
            new = record[self.index :]
            old_next = Signal(8)
            old = self._old_score()
            has_old, has_new = old_at < self.kept_old, new_at < self.n
            takes_new = ~has_old | (has_new & (new > key_of(old)))
            m.d.comb += [
                self.running_in.addr.eq(Cat(out_at[0:7], self._bank(1), self.request)),
                self.running_in.data.eq(Mux(takes_new, bits_of_key(new), old)),
                self.running_in.en.eq(1),
                old_next.eq(old_at + ~takes_new),
                self.running_out.addr.eq(self._old(old_next)),
                self.running_out.en.eq(1),
            ]
            m.d.sync += [old_at.eq(old_next), new_at.eq(new_at + takes_new)]
            m.d.sync += out_at.eq(out_at + 1)
            with m.If(out_at + 1 == self.kept_new):
                m.d.sync += [old_at.eq(0), new_at.eq(0), out_at.eq(0)]
                m.next = "CHILDREN"

    def _hand_on(self, m: Module) -> None:
        """Rows of the best children's parents to the gather, each parent once."""
        masks = [Signal(MOST_CHILDREN, name=f"children_of_{i}") for i in range(MOST_CHILDREN)]
        parent = Signal(4)
        with m.State("CHILDREN"):
            for slot, mask in enumerate(masks):
                own = Mux(self.slots_out.data == slot, 1 << self.place[0:4], 0)
                m.d.sync += mask.eq(Mux(self.place == 0, 0, mask) | own)
            with m.If(counted_loop(m, self.place, Const(1), self.argument("K"))):
                m.d.sync += parent.eq(0)
                m.next = "JOBS"
        with m.State("JOBS"):
            mask = Signal(MOST_CHILDREN)
            for slot, value in enumerate(masks):
                with m.If(parent == slot):
                    m.d.comb += mask.eq(value)
            is_wanted = (mask != 0) & (self.argument("row_beats") != 0)
            m.d.comb += [
                self.gather.i_valid.eq(is_wanted),
                self.gather.i_source.eq(self.row_at + parent),
                self.gather.i_children.eq(mask),
                self.gather.i_first_child.eq(self.child_at),
                self.downstream_full.eq(is_wanted & ~self.gather.o_ready),
            ]
            with m.If(~is_wanted | self.gather.o_ready):
                m.d.sync += parent.eq(parent + 1)
                with m.If(parent + 1 == self.width):
                    m.d.sync += [
                        self.row_at.eq(self.row_at + self.width),
                        self.child_at.eq(self.child_at + self.argument("K")),
                        self.request.eq(self.request + 1),
                    ]
                    m.next = "REQUEST"

    def _means(self, m: Module) -> None:
        count = self.argument("K") + 1
        with m.State("ANNOUNCE_GAINS"), m.If(self.writes(m, "G", self.gain_at, count, SINGLE)):
            m.d.sync += self.gain_at.eq(self.gain_at + count)
            m.next = "MEAN"
        with m.State("MEAN"):
            m.d.comb += [
                self.mean.i_start.eq(1),
                self.mean.i_value.eq(self.gains[self.place]),
                self.mean.i_divisor.eq(self.argument("B")),
            ]
            m.next = "GIVE_MEAN"
        with m.State("GIVE_MEAN"):
            m.d.comb += [
                self.writer.i_valid.eq(self.mean.o_done),
                self.writer.i_data.eq(self.mean.o_bits),
                self.upstream_empty.eq(~self.mean.o_done),
            ]
            gave = self.mean.o_done & self.writer.o_ready
            with m.If(gave):
                m.next = "MEAN"
            with m.If(counted_loop(m, self.place, gave, count)):
                m.d.sync += [self.level.eq(self.level + 1), self.count.eq(self.count + self.n)]
                m.next = "LEVEL"

    def _end(self, m: Module) -> None:
        """The running orders go out: what a planner chooses by."""
        with m.State("ORDERS"):
            m.d.sync += self.request.eq(0)
            m.next = "ORDER"
        with m.State("ORDER"):
            with m.If(self.request == self.argument("B")):
                m.next = "DRAIN"
            with m.Else():
                first = (self.request * self.argument("verify_num")[0:8])[0:16]
                m.d.comb += [
                    self.running_out.addr.eq(self._old(Const(0, 8))),
                    self.running_out.en.eq(1),
                ]
                with m.If(self.writes(m, "sort_scores", first, self.kept_new, SINGLE)):
                    m.next = "ORDER_GIVE"
        with m.State("ORDER_GIVE"):
            gave = self.gives(m, self.running_out.data)
            ahead = (self.place + gave)[0:8]
            m.d.comb += [self.running_out.addr.eq(self._old(ahead)), self.running_out.en.eq(1)]
            with m.If(counted_loop(m, self.place, gave, self.kept_new)):
                m.d.sync += self.request.eq(self.request + 1)
                m.next = "ORDER"
        with m.State("DRAIN"):
            self.finishes(m, self.gather.o_idle)
            m.d.comb += self.stall_read.eq(self.gather.o_stall_read & ~self.gather.o_moves)
            with m.If(self.done):
                m.next = "IDLE"
