"""Rounds recorded ahead, at once or in idle moments: nothing is left, and no text changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine import captured as captured_module
from aerie.requests.params import SamplingParams
from aerie.tune.grid import silent
from aerie.tune.warm import Idle, warm
from tests.unit.engine.cores import PLAIN, Pair, core, load_pair, outputs
from tests.unit.engine.test_captured import SHAPES
from tests.unit.engine.test_grammar import make_jobs, run

JOBS = [([1, 2, 3], SamplingParams(max_tokens=12, ignore_eos=True))]


@pytest.mark.parametrize("is_idle", [False, True], ids=["at once", "in idle moments"])
def test_everything_is_recorded_and_leaves_no_trace(pair_directory: Path, is_idle: bool) -> None:
    pair = load_pair(pair_directory, "exact")
    plain, engine = (
        core(pair, speculation=SHAPES["planner"], engine=launcher)
        for launcher in ("direct", "graphs")
    )
    if is_idle:
        idle = Idle(engine)
        n_left = len(idle)
        while idle:
            idle.record_one()
        assert n_left > 20
    else:
        told: list[tuple[str, int, int]] = []
        warm(engine, lambda *where: told.append(where))
        n_all = told[-1][1]
        assert n_all > 20 and told[-1] == ("recording rounds", n_all, n_all)
    assert not engine.launcher.unrecorded()
    assert outputs(engine, JOBS) == outputs(plain, JOBS)
    assert not engine.launcher.unrecorded()


@pytest.mark.parametrize("shape", ["tree", "planner"])
def test_after_it_a_batch_with_grammars_records_nothing(pair: Pair, shape: str) -> None:
    """Coarser sizes and shapes have to do, whatever requests come and leave."""
    engine = core(pair, speculation=SHAPES[shape], engine="graphs", max_batch=4)
    jobs = [*make_jobs("warm", "greedy"), *make_jobs("warmer", "nucleus")]
    plain = [request.output for request in run(core(pair, speculation=PLAIN), jobs)]
    warm(engine, silent)
    graphs = engine.launcher.graphs
    n_met = len(graphs.keys)
    found = run(engine, jobs, random.Random(3))
    assert [request.output for request in found] == plain
    assert len(graphs.keys) == n_met, "a round asked for what was not recorded"


def test_grammars_add_few_graphs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As shipped for an H200: a sixth more; and none where nothing can compile a grammar."""
    wanted = {"graphs": GraphConfig(columns=(1024,)), "max_batch": 32, "n_pages": 4096}
    engine = core(pair, speculation=SpeculationConfig(policy="planner"), engine="graphs", **wanted)
    n_all = len(engine.launcher.unrecorded())
    monkeypatch.setattr(captured_module, "is_available", lambda: False)
    n_without = len(engine.launcher.unrecorded())
    assert 0 < n_all - n_without <= n_without / 6


def test_nothing_is_recorded_where_functions_are_called(pair_directory: Path) -> None:
    engine = core(load_pair(pair_directory, "exact"), speculation=SHAPES["planner"])
    assert not engine.launcher.unrecorded()
    warm(engine, silent)
