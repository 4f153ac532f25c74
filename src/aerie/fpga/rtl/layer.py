"""K1 as a card: score a layer, sort it, gather the hidden rows of the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from aerie.fpga.rtl.bursts import read_members, write_members
from aerie.fpga.rtl.card import DOUBLE, SINGLE, CardEngine, counted_loop
from aerie.fpga.rtl.checks import NOT_INJECTIVE, OUT_OF_RANGE
from aerie.fpga.rtl.floats import FLOAT, Multiplier, bits_of_key, clamped_probability, key_of
from aerie.fpga.rtl.gather import MOST_CHILDREN, Gather
from aerie.fpga.rtl.sorter import Sorter

MINUS_ONE = (1 << 64) - 1
ID = 18  # bits of a target id in the map


class LayerScores(CardEngine):
    """Scores, both orders, the best K with their parents, tokens as target ids, hidden rows.

    Rows of hidden states lie `row_beats` bus words apart in memory, in and out. `n` is W * K.
    """

    ARGUMENTS = ("B", "W", "K", "n", "cumu_count", "VD", "has_map", "row_beats")
    PORTS = (
        "topk_probas", "topk_tokens", "last_layer_scores", "input_hidden", "hot_token_id",
        "curr_layer_scores", "sort_layer_scores", "sort_layer_indices", "cache_topk_indices",
        "parent_indices_in_layer", "output_hidden", "mapped_tokens", "status",
    )  # fmt: skip

    def __init__(
        self,
        candidates: int = 64,
        bus: int = 256,
        most_beats: int = 512,
        map_entries: int = 4096,
        instance: bool = False,
        wrong: tuple[int, ...] = (),
    ) -> None:
        self.candidates = candidates
        self.bus = bus
        self.most_beats = most_beats
        self.map_entries = map_entries
        self.index = (candidates - 1).bit_length()
        self.instance = instance
        self.wrong = wrong
        self.own_map: tuple[int, ...] = ()
        super().__init__({**read_members("g_axi", bus), **write_members("g_axi", bus)})

    def with_map(self, ids: Sequence[int]) -> Self:
        """The card for one model: its map of target ids is a ROM, known to have each id once."""
        assert len(set(ids)) == len(ids), "a map of target ids has an id twice"
        self.own_map = tuple(ids)
        return self.fixing({**self.constants, "has_map": 1, "VD": len(ids)})

    def body(self, m: Module) -> None:
        """The map if there is one, then request after request."""
        self._parts(m)
        self.request, self.place = Signal(8), Signal(20)
        self.slot, self.in_slot = Signal(4), Signal(4)
        self.first, self.best, self.frontier = Signal(32), Signal(32), Signal(32)
        self.is_outside, self.is_repeated = Signal(), Signal()
        self.scores = Signal(self.candidates * FLOAT)
        self.sorted = Signal(self.candidates * (FLOAT + self.index))
        self.refusal = Signal(8)
        m.d.comb += self.refusal.eq(
            Mux(self.is_outside, OUT_OF_RANGE, Mux(self.is_repeated, NOT_INJECTIVE, 0))
        )
        self._vector(m)
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += [self.request.eq(0), self.is_repeated.eq(0), self.place.eq(0)]
                m.d.sync += [self.first.eq(0), self.best.eq(0), self.frontier.eq(0)]
                m.next = "REQUEST"
                if not self.own_map:
                    with m.If(self.argument("has_map")[0]):
                        m.next = "ASK_MAP"
            if not self.own_map:
                self._map(m)
            self._load(m)
            self._sort(m)
            self._emit(m)
            self._next(m)

    def _parts(self, m: Module) -> None:
        record = FLOAT + self.index
        m.submodules.multiplier = self.multiplier = Multiplier(self.index)
        m.submodules.sorter = self.sorter = Sorter(
            self.candidates, record, instance=self.instance, wrong=self.wrong
        )
        m.submodules.gather = self.gather = Gather(self.bus, self.most_beats)
        for name in (*read_members("g_axi", self.bus), *write_members("g_axi", self.bus)):
            self._join(m, name, self.gather)
        sizes = {
            "tokens": (64, self.candidates),
            "parents": (FLOAT, 16),
            "slot_of": (4, self.candidates),
            "ids": (ID, len(self.own_map) or self.map_entries),
            **({} if self.own_map else {"seen": (64, 1 << (ID - 6))}),  # a bit for each target id
        }
        self.ports = {}
        for name, (shape, depth) in sizes.items():
            memory = Memory(shape=shape, depth=depth, init=self.own_map if name == "ids" else ())
            m.submodules[name] = memory
            # Small ones are answered at once, from LUTs; large ones are block RAM, a cycle later.
            domain = "sync" if name in ("ids", "seen") else "comb"
            self.ports[name] = memory.write_port(), memory.read_port(domain=domain)
        m.d.comb += [
            self.gather.i_source_base.eq(self.argument("input_hidden_base")),
            self.gather.i_target_base.eq(self.argument("output_hidden_base")),
            self.gather.i_beats.eq(self.argument("row_beats")),
            self.extra_in.eq(self.gather.o_bytes_in),
            self.extra_out.eq(self.gather.o_bytes_out),
            self.items.eq(self.gather.o_moves),
            self.item_cycles.eq(self.gather.o_moves | self.gather.o_stall_write),
        ]

    def _map(self, m: Module) -> None:
        """Every target id once: a bit for each says whether it was seen; then the bits go again."""
        size = self.argument("VD")
        (ids_in, ids_out), (seen_in, seen_out) = self.ports["ids"], self.ports["seen"]
        with m.State("ASK_MAP"):
            with m.If(self.reads(m, "hot_token_id", Const(0), size, DOUBLE)):
                m.next = "TAKE_MAP"
        entry = Signal(ID)
        own = (1 << entry[0:6])[0:64]
        with m.State("TAKE_MAP"):
            is_there, value = self.takes(m)
            m.d.comb += [
                ids_in.addr.eq(self.place),
                ids_in.data.eq(value),
                ids_in.en.eq(is_there),
                seen_out.addr.eq(value[6:ID]),
                seen_out.en.eq(1),
            ]
            with m.If(is_there):
                m.d.sync += entry.eq(value)
                m.next = "MARK_MAP"
        with m.State("MARK_MAP"):
            m.d.comb += [
                seen_in.addr.eq(entry[6:ID]),
                seen_in.data.eq(seen_out.data | own),
                seen_in.en.eq(1),
            ]
            with m.If((seen_out.data & own) != 0):
                m.d.sync += self.is_repeated.eq(1)
            m.next = "TAKE_MAP"
            with m.If(counted_loop(m, self.place, Const(1), size)):
                m.next = "FIND_MAP"
        # The bits go again, one entry in two cycles.
        with m.State("FIND_MAP"):
            m.d.comb += [ids_out.addr.eq(self.place), ids_out.en.eq(1)]
            m.next = "CLEAR_MAP"
        with m.State("CLEAR_MAP"):
            m.d.comb += [
                seen_in.addr.eq(ids_out.data[6:ID]),
                seen_in.data.eq(0),
                seen_in.en.eq(1),
            ]
            m.next = "FIND_MAP"
            with m.If(counted_loop(m, self.place, Const(1), size)):
                m.next = "REQUEST"

    def _load(self, m: Module) -> None:
        """Tokens, parents' scores, probabilities; each product goes to its place."""
        count, width = self.argument("n"), self.argument("W")
        asked: tuple[tuple[str, str, Value, Value, int, str], ...] = (
            ("ASK_TOKENS", "topk_tokens", self.first, count, DOUBLE, "ASK_PARENTS"),
            ("ASK_PARENTS", "last_layer_scores", self.frontier, width, SINGLE, "ASK_PROBAS"),
            ("ASK_PROBAS", "topk_probas", self.first, count, SINGLE, "PARENTS"),
        )
        with m.State("REQUEST"):
            m.d.sync += self.is_outside.eq(0)
            m.next = "ASK_TOKENS"
            with m.If(self.request == self.argument("B")):
                m.next = "DRAIN"
        for name, port, index, n, size, after in asked:
            with m.State(name), m.If(self.reads(m, port, index, n, size)):
                m.next = after if name != "ASK_TOKENS" else "TOKENS"
        with m.State("TOKENS"):
            is_there, token = self.takes(m)
            store, _ = self.ports["tokens"]
            m.d.comb += [store.addr.eq(self.place), store.data.eq(token), store.en.eq(is_there)]
            is_wrong = self.argument("has_map")[0] & (token >= self.argument("VD"))
            with m.If(is_there & is_wrong):
                m.d.sync += self.is_outside.eq(1)
            with m.If(counted_loop(m, self.place, is_there, count)):
                m.next = "JUDGE"
        with m.State("JUDGE"):
            # What is refused is not read any further.
            m.next = "ASK_PARENTS"
            with m.If(self.refusal != 0):
                m.next = "GIVE_CURRENT"
        with m.State("PARENTS"):
            is_there, score = self.takes(m)
            store, _ = self.ports["parents"]
            m.d.comb += [store.addr.eq(self.place), store.data.eq(score), store.en.eq(is_there)]
            with m.If(counted_loop(m, self.place, is_there, width)):
                m.d.sync += [self.slot.eq(0), self.in_slot.eq(0)]
                m.next = "PROBAS"
        with m.State("PROBAS"):
            is_there, proba = self.takes(m)
            _, parents = self.ports["parents"]
            slots, _ = self.ports["slot_of"]
            m.d.comb += [
                parents.addr.eq(self.slot),
                self.multiplier.i_valid.eq(is_there),
                self.multiplier.i_x.eq(clamped_probability(proba[0:FLOAT])),
                self.multiplier.i_y.eq(parents.data),
                self.multiplier.i_tag.eq(self.place),
                slots.addr.eq(self.place),
                slots.data.eq(self.slot),
                slots.en.eq(is_there),
            ]
            with m.If(is_there):
                m.d.sync += self.in_slot.eq(self.in_slot + 1)
                with m.If(self.in_slot + 1 == self.argument("K")):
                    m.d.sync += [self.in_slot.eq(0), self.slot.eq(self.slot + 1)]
            with m.If(counted_loop(m, self.place, is_there, count)):
                m.next = "MULTIPLY"

    def _vector(self, m: Module) -> None:
        """Products to a vector of records."""
        record = FLOAT + self.index
        for place in range(self.candidates):
            hit = self.multiplier.o_valid & (self.multiplier.o_tag == place)
            with m.If(hit):
                m.d.sync += self.scores.word_select(place, FLOAT).eq(self.multiplier.o_product)
            # Ties fall to the lower index: it is stored complemented, below the key.
            key = key_of(self.scores.word_select(place, FLOAT))
            whole = Cat(Const(self.candidates - 1 - place, self.index), key)
            is_used = place < self.argument("n")
            m.d.comb += self.sorter.i_records.word_select(place, record).eq(Mux(is_used, whole, 0))

    def _sort(self, m: Module) -> None:
        """One vector through the network."""
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
                m.next = "GIVE_CURRENT"

    def _emit(self, m: Module) -> None:
        """Seven results of a request, one element a cycle; a refused one gets the fillers."""
        record = FLOAT + self.index
        _, tokens = self.ports["tokens"]
        _, ids = self.ports["ids"]
        _, slots = self.ports["slot_of"]
        here = self.sorted.word_select(self.place[0 : self.index], record)
        index = self.candidates - 1 - here[0 : self.index]
        candidate = index[0 : self.index]
        count, top_k = self.argument("n"), self.argument("K")
        current = self.scores.word_select(self.place[0 : self.index], FLOAT)
        m.d.comb += [tokens.addr.eq(self.place), slots.addr.eq(candidate)]
        mapped = Mux(self.argument("has_map")[0], ids.data, tokens.data)
        results: tuple[tuple[str, str, Value, Value, int, Value, int], ...] = (
            ("CURRENT", "curr_layer_scores", self.first, count, SINGLE, current, 0),
            ("SORTED", "sort_layer_scores", self.first, count, SINGLE,
             bits_of_key(here[self.index :]), 0),
            ("INDICES", "sort_layer_indices", self.first, count, DOUBLE, candidate, MINUS_ONE),
            ("BEST", "cache_topk_indices", self.best, top_k, DOUBLE,
             self.argument("cumu_count") + candidate, MINUS_ONE),
            ("PARENT", "parent_indices_in_layer", self.best, top_k, DOUBLE, slots.data, MINUS_ONE),
            ("MAPPED", "mapped_tokens", self.first, count, DOUBLE, mapped, MINUS_ONE),
            ("STATUS", "status", self.request, Const(1), SINGLE, self.refusal, 0),
        )  # fmt: skip
        names = [f"GIVE_{entry[0]}" for entry in results] + ["GATHER"]
        for number, (name, port, at, n, size, value, filler) in enumerate(results):
            begins = "MAPPED_READ" if name == "MAPPED" else f"{name}_GIVE"
            with m.State(f"GIVE_{name}"):
                with m.If(self.writes(m, port, at, n, size)):
                    m.next = begins
            if name == "MAPPED":
                # The map answers a cycle later.
                with m.State("MAPPED_READ"):
                    m.d.comb += [ids.addr.eq(tokens.data), ids.en.eq(1)]
                    m.next = "MAPPED_GIVE"
            with m.State(f"{name}_GIVE"):
                is_filled = (self.refusal != 0) & (name != "STATUS")
                gave = self.gives(m, Mux(is_filled, filler, value))
                if name == "MAPPED":
                    with m.If(gave):
                        m.next = begins
                with m.If(counted_loop(m, self.place, gave, n)):
                    m.next = names[number + 1]

    def _next(self, m: Module) -> None:
        """Parents that are wanted go to the gather; then the next request."""
        _, slots = self.ports["slot_of"]
        masks = [Signal(MOST_CHILDREN, name=f"children_of_{i}") for i in range(MOST_CHILDREN)]
        parent = Signal(4)
        with m.State("GATHER"):
            # One child a cycle finds its parent; a refused request has no rows to give.
            here = self.sorted.word_select(self.place[0 : self.index], FLOAT + self.index)
            m.d.comb += slots.addr.eq((self.candidates - 1 - here[0 : self.index])[0 : self.index])
            for slot, mask in enumerate(masks):
                hit = (slots.data == slot) & (self.refusal == 0)
                own = Mux(hit, 1 << self.place[0:4], 0)
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
                self.gather.i_source.eq(self.frontier + parent),
                self.gather.i_children.eq(mask),
                self.gather.i_first_child.eq(self.best),
                self.downstream_full.eq(is_wanted & ~self.gather.o_ready),
            ]
            with m.If(~is_wanted | self.gather.o_ready):
                m.d.sync += parent.eq(parent + 1)
                with m.If(parent + 1 >= self.argument("W")):
                    m.next = "NEXT"
        with m.State("NEXT"):
            m.d.sync += [
                self.request.eq(self.request + 1),
                self.first.eq(self.first + self.argument("n")),
                self.best.eq(self.best + self.argument("K")),
                self.frontier.eq(self.frontier + self.argument("W")),
            ]
            m.next = "REQUEST"
        with m.State("DRAIN"):
            self.finishes(m, self.gather.o_idle)
            m.d.comb += self.stall_read.eq(self.gather.o_stall_read & ~self.gather.o_moves)
            with m.If(self.done):
                m.next = "IDLE"
