"""Simulates every block on every kind of call, compares bit for bit, and adds up the counters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from aerie.fpga.blocks import Block
from aerie.fpga.build_verilator import BuiltCard, Pauses, build_card
from aerie.fpga.cycles import COUNTS, Counts, CycleModel, fitted
from aerie.fpga.rtl.registers import COUNTERS
from aerie.fpga.rtl.top import TreeTop
from aerie.fpga.sim.calls import (
    SimCall,
    case_calls,
    define,
    dump_calls,
    live_rounds,
    random_calls,
    round_calls,
)
from aerie.fpga.sim.images import CallImage
from aerie.fpga.sim.largest import LARGEST
from aerie.fpga.sim.round_image import round_image
from aerie.fpga.trace import TraceRecipe
from aerie.fpga.tree_round import TreeRound

# A memory that holds back three of ten beats either way, and one that does not.
FREE, PAUSED = Pauses(), Pauses(read=0.3, write=0.3)
BUS = 256
RECIPES = (TraceRecipe(1, 32, 6), TraceRecipe(8, 64, 2))


@dataclass
class Tally:
    """What became of the calls of one source under one memory."""

    block: str
    source: str
    memory: str
    calls: int = 0
    vectors: int = 0
    outside: dict[str, int] = field(default_factory=dict)  # by reason
    differing: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    def take(self, card: BuiltCard, made: CallImage, pauses: Pauses, vectors: int) -> int:
        """Run one more call; the cycles it took."""
        stored = bytearray(made.image.memory)
        seen = card.run(stored, made.registers, pauses)
        self.differing += [f"{self.calls}: {name}" for name in made.differing(stored)]
        self.calls += 1
        self.vectors += vectors
        for counter in COUNTERS:
            self.counters[counter] += seen[counter]
        return seen["cycles"]

    def row(self) -> dict[str, object]:
        """For the table."""
        share = sum(self.outside.values()) / max(self.calls + sum(self.outside.values()), 1)
        items = self.counters["items"]
        return {
            "block": self.block,
            "source": self.source,
            "memory": self.memory,
            "calls": self.calls,
            "vectors": self.vectors,
            "outside_share": round(share, 4),
            "differing": len(self.differing),
            **self.counters,
            "interval": round(self.counters["item_cycles"] / items, 4) if items else "",
            "kind": "rtl-sim",
        }


@dataclass
class BlockStudy:
    """One block: a tally for each source and memory, and the cycle model of each memory."""

    tallies: list[Tally]
    models: dict[str, CycleModel]


def study_block(
    block: Block, dumps: Path, n_vectors: int, rounds: Iterable[TreeRound]
) -> BlockStudy:
    """Dumps, cases and live rounds without and with back-pressure; half of the vectors each."""
    card = build_card(block.make(), block.name, block.prefixes)
    tallies = []
    sources: dict[str, list[SimCall]] = {}
    if block.kernel:
        sources = {
            "dump": list(dump_calls(block, dumps)),
            "case": list(case_calls(block)),
            "live": round_calls(block, rounds),
        }
    models = {}
    for memory, pauses in (("free", FREE), ("paused", PAUSED)):
        for source, calls in sources.items():
            tallies.append(_run(card, block, (source, memory), calls, pauses)[0])
        drawn = random_calls(block, n_vectors // 2, 1 + len(tallies))
        tally, counts, cycles = _run(card, block, ("random", memory), drawn, pauses)
        tallies.append(tally)
        models[memory] = fitted(counts, cycles)
    return BlockStudy(tallies, models)


def _run(
    card: BuiltCard, block: Block, name: tuple[str, str], calls: Iterable[SimCall], pauses: Pauses
) -> tuple[Tally, list[Counts], list[int]]:
    tally = Tally(block.name, *name)
    counts: list[Counts] = []
    cycles: list[int] = []
    for number, call in enumerate(calls):
        reason = block.beyond(call.inputs)
        if reason:
            tally.outside[reason] = tally.outside.get(reason, 0) + 1
            continue
        made = block.image(call.inputs, call.outputs)
        cycles.append(tally.take(card, made, replace(pauses, seed=number), call.vectors))
        counts.append(COUNTS[block.name](made.registers, call.outputs))
    return tally, counts, cycles


def study_largest(block: Block, batch: int) -> Tally:
    """Latency and interval of one call at the bounds, memory never holding back."""
    card = build_card(block.make(), block.name, block.prefixes)
    inputs = LARGEST[block.name](np.random.default_rng(0), batch)
    outputs = define(block, inputs)
    assert outputs is not None
    calls = [SimCall(f"largest-{batch}", inputs, outputs, batch)]
    return _run(card, block, (f"largest, batch {batch}", "free"), calls, FREE)[0]


def study_top(rounds: Iterable[TreeRound]) -> list[Tally]:
    """The composed card on whole recorded rounds."""
    card = build_card(TreeTop(), "top", ("m_axi", "g_axi"))
    images = [round_image(one, BUS) for one in rounds]
    tallies = []
    for memory, pauses in (("free", FREE), ("paused", PAUSED)):
        tally = Tally("top", "live", memory)
        for made in images:
            tally.take(card, made, pauses, made.registers["B"])
        tallies.append(tally)
    return tallies


def recorded_rounds() -> list[TreeRound]:
    """Rounds that every block and the composed card are run on."""
    return live_rounds(RECIPES)
