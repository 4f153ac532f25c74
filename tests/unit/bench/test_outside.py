"""Between two graphs of steady rounds an engine asks nothing of its device."""

from __future__ import annotations

import torch

from aerie.bench.round.options import LIMITS, compared
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start
from aerie.bench.round.speed import Clocked
from aerie.config import GraphConfig, SpeculationConfig
from tests.unit.bench.outside import OutsideGraphs

SETUP = RoundSetup("cpu", "float32", None, "pytorch")
CHAIN = SpeculationConfig(top_k=1, depth=3, nodes=4)


def test_only_what_no_graph_runs_is_counted() -> None:
    pair = SETUP.load()
    room = Room(2, 256, graphs=GraphConfig(record_every=0))
    core = SETUP.core(pair, CHAIN, room)
    prompts = read_prompts(3, 24, pair.target.geometry.vocab_size)
    start(core, prompts[:1], 200, temperature=0.5, top_p=0.9, logprobs=2)
    for _ in range(3):
        core.step()
    graphs = core.launcher.graphs
    with OutsideGraphs(core) as steady:
        for _ in range(3):
            assert core.step()
    assert not steady.kernels and not steady.copies
    with OutsideGraphs(core) as counted:
        graphs.run(("mine",), lambda: core.memory.table.sum())
        core.memory.table.max()
        torch.empty(3)
        core.memory.table[:1].clone()
    assert counted.kernels == {"max": 1, "clone": 1} and not counted.copies
    assert graphs.run.__self__ is graphs  # watched no longer


def test_ratios_are_of_turns_that_ran_one_after_the_other() -> None:
    core = SETUP.core(SETUP.load(), CHAIN, Room(1, 64))
    walls = {
        "greedy": [[10.0, 10.0, 90.0], [20.0, 20.0, 20.0]],
        "sampled": [[11.0, 11.0, 11.0], [21.0, 21.0, 21.0]],
        "logprobs": [[12.0], [22.0]],
        "sampled logprobs": [[11.0], [21.0]],
    }
    times = {name: [Clocked(core, wall) for wall in turns] for name, turns in walls.items()}
    found = compared(times)["ratios"]
    assert found["sampled / greedy"] == {"median": 1.075, "turns": [1.1, 1.05], "limit": 1.06}
    assert found["logprobs / greedy"]["turns"] == [1.2, 1.1]
    assert found["sampled logprobs / sampled"]["median"] == 1.0
    assert len(found) == len(LIMITS)
