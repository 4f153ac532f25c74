"""A sorting network: Batcher's odd-even merge sort, a register after every few layers; II = 1."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Instance, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

Pair = tuple[int, int]
COMPARATOR = "compare_exchange"


def layers_of(n: int) -> list[list[Pair]]:
    """Comparators by layer; each puts the larger record of its pair at the lower place."""
    layers: list[list[Pair]] = []
    p = 1
    while p < n:
        k = p
        while k >= 1:
            layers.append(_layer(n, p, k))
            k //= 2
        p *= 2
    return layers


def _layer(n: int, p: int, k: int) -> list[Pair]:
    pairs = []
    for j in range(k % p, n - k, 2 * k):
        for i in range(min(k, n - j - k)):
            if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                pairs.append((i + j, i + j + k))
    return pairs


def exchanged(m: Module, a: Value, b: Value, name: str, instance: bool) -> tuple[Value, Value]:
    """The larger of two records, then the smaller."""
    high, low = Signal.like(a, name=f"{name}_high"), Signal.like(a, name=f"{name}_low")
    if instance:
        m.submodules[name] = Instance(COMPARATOR, i_a=a, i_b=b, o_high=high, o_low=low)
    else:
        is_behind = a < b
        m.d.comb += [high.eq(Mux(is_behind, b, a)), low.eq(Mux(is_behind, a, b))]
    return high, low


class CompareExchange(wiring.Component):
    """One comparator as a module of its own, for synthesis that maps it once."""

    def __init__(self, width: int) -> None:
        super().__init__({"a": In(width), "b": In(width), "high": Out(width), "low": Out(width)})

    def elaborate(self, platform: object) -> Module:
        """Combinational."""
        m = Module()
        high, low = exchanged(m, self.a, self.b, "pair", instance=False)
        m.d.comb += [self.high.eq(high), self.low.eq(low)]
        return m


class Sorter(wiring.Component):
    """Sorts `n` records of `width` bits, the largest first; a new vector may enter every cycle.

    Records are compared as whole integers: a caller that wants ties broken by index puts the index,
    complemented, into the lowest bits. `wrong` names comparators that are left out, for tests.
    """

    def __init__(
        self,
        n: int,
        width: int,
        layers_per_register: int = 1,
        instance: bool = False,
        wrong: Sequence[int] = (),
    ) -> None:
        self.n = n
        self.width = width
        self.layers = layers_of(n)
        self.per_register = layers_per_register
        self.instance = instance
        self.wrong = frozenset(wrong)
        super().__init__(
            {
                "i_valid": In(1),
                "i_records": In(n * width),
                "o_valid": Out(1),
                "o_records": Out(n * width),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a vector in to the same vector out."""
        return -(-len(self.layers) // self.per_register)

    @property
    def n_comparators(self) -> int:
        """Comparators of the whole network."""
        return sum(len(layer) for layer in self.layers)

    def elaborate(self, platform: object) -> Module:
        """Layer after layer."""
        m = Module()
        records: list[Value] = [self.i_records.word_select(i, self.width) for i in range(self.n)]
        valid: Value = self.i_valid
        number = 0
        for depth, layer in enumerate(self.layers, start=1):
            for low, high in layer:
                if number not in self.wrong:
                    name = f"comparator_{number}"
                    records[low], records[high] = exchanged(
                        m, records[low], records[high], name, self.instance
                    )
                number += 1
            if depth % self.per_register == 0 or depth == len(self.layers):
                held = [Signal(self.width, name=f"record_{depth}_{i}") for i in range(self.n)]
                m.d.sync += [new.eq(old) for new, old in zip(held, records, strict=True)]
                records = list(held)
                kept = Signal(name=f"valid_{depth}")
                m.d.sync += kept.eq(valid)
                valid = kept
        m.d.comb += self.o_valid.eq(valid)
        for place, record in enumerate(records):
            m.d.comb += self.o_records.word_select(place, self.width).eq(record)
        return m
