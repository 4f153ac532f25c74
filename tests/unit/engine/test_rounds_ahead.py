"""Rounds launched before the report of the round before is read: what is known, and who ended."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest

from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.params import SamplingParams
from tests.unit.engine.cores import (
    CHEAP,
    DEAR,
    Pair,
    assert_pool_is_unheld,
    core,
    finish_all,
    outputs,
)
from tests.unit.engine.test_engine import assert_kv_is_fresh
from tests.unit.engine.test_lossless import PLAIN

SHAPES = {
    "none": PLAIN,
    "tree": SpeculationConfig(top_k=3, depth=3, nodes=12),
    "planner": SpeculationConfig(policy="planner", top_k=3, depth=3, nodes=12),
}
BUCKETS = GraphConfig(
    slots=(1, 2, 4),
    rows=(4, 8, 16, 24),
    tiles=(2, 4, 12),
    columns=(32, 64, 128),
    record_every=0,
)


def device_core(pair: Pair, shape: str) -> EngineCore:
    return core(pair, speculation=SHAPES[shape], planner=CHEAP, engine="graphs", graphs=BUCKETS)


@pytest.mark.parametrize("shape", SHAPES)
def test_steady_rounds_do_not_wait_for_a_report(pair: Pair, shape: str) -> None:
    engine = device_core(pair, shape)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, SamplingParams(max_tokens=60, ignore_eos=True))
    finish_all(engine)
    assert engine.rounds is not None
    counts = engine.rounds.counts
    assert counts.ahead > counts.rounds // 2


@pytest.mark.parametrize("shape", ["tree", "planner"])
def test_rows_that_nobody_counted_fit_their_bucket(
    pair: Pair, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = device_core(pair, shape)
    rounds = engine.rounds
    assert rounds is not None
    launch, chosen, spare = rounds.graphs.run, rounds.parts.state.chosen, []

    def watched(key: Any, call: Callable[[], None]) -> None:
        if key[0] == "verify":
            spare.append(key[1].rows - int(chosen[: key[1].slots].sum()))
        launch(key, call)

    monkeypatch.setattr(rounds.graphs, "run", watched)
    for first in (1, 2, 3):
        engine.submit([first, 2], SamplingParams(max_tokens=60, ignore_eos=True))
    finish_all(engine)
    assert rounds.counts.ahead > 5
    assert min(spare) >= 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_that_stops_while_its_next_round_runs(pair: Pair, shape: str) -> None:
    """The round in vain touches neither the text, nor its neighbours, nor pages kept for others."""
    free = [([n, 2, 3], SamplingParams(max_tokens=40, ignore_eos=True)) for n in range(1, 5)]
    texts = outputs(core(pair, speculation=PLAIN), free)
    jobs = [
        (prompt, SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(text[at],)))
        for at, (prompt, _), text in zip((9, 17, 25, 39), free, texts, strict=True)
    ]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    assert any(len(text) < 40 for text in plain)
    engine = device_core(pair, shape)
    assert outputs(engine, jobs) == plain
    assert engine.rounds is not None and engine.rounds.counts.ahead > 0
    # The same prompts, and then those with their answers: found again in the prefix cache.
    short = SamplingParams(max_tokens=6)
    longer = [([*p, *text], short) for (p, _), text in zip(jobs, plain, strict=True)]
    ids = [engine.submit(prompt, params) for prompt, params in longer]
    while not engine.is_idle:
        engine.step()
        for request in engine.running:
            if request.held.pages:
                assert_kv_is_fresh(pair, engine, request)
    found = [engine.request(request_id) for request_id in ids]
    assert any(request.statistics.reused_tokens for request in found)
    assert [r.output for r in found] == outputs(core(pair, speculation=PLAIN), longer)
    assert_pool_is_unheld(engine)


@pytest.mark.parametrize("costs", ["cheap", "dear"])
def test_nobody_is_drafted_for_who_gave_its_pages_back(
    pair: Pair, costs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner's draft is launched after the report: the pages may be somebody else's by then."""
    planner = CHEAP if costs == "cheap" else DEAR
    engine = core(
        pair, speculation=SHAPES["planner"], planner=planner, engine="graphs", graphs=BUCKETS
    )
    rounds = engine.rounds
    assert rounds is not None
    launch, state, n_gone = rounds.graphs.run, rounds.parts.state, 0

    def watched(key: Any, call: Callable[[], None]) -> None:
        nonlocal n_gone
        if key[0] in ("draft", "close"):
            for slot, place in enumerate(rounds._seating.seats):
                if not place.request.held.pages:
                    n_gone += 1
                    assert int(state.seats.table_row[slot]) == state.inert_row
        launch(key, call)

    monkeypatch.setattr(rounds.graphs, "run", watched)
    free = [([n, 2, 3], SamplingParams(max_tokens=40, ignore_eos=True)) for n in range(1, 9)]
    texts = outputs(core(pair, speculation=PLAIN), free)
    jobs = [
        (prompt, replace(params, stop_token_ids=(text[7 + 3 * at],)))
        for at, ((prompt, params), text) in enumerate(zip(free, texts, strict=True))
    ]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    for first in range(0, 8, 2):  # nobody waits, so that rounds run ahead
        ids = [engine.submit(*job) for job in jobs[first : first + 2]]
        finish_all(engine)
        assert [engine.request(i).output for i in ids] == plain[first : first + 2]
    assert n_gone > 0
    assert_pool_is_unheld(engine)


def test_reports_take_turns(pair: Pair) -> None:
    """A report stays as it is while the round after it writes its own."""
    engine = device_core(pair, "tree")
    engine.submit([1, 2, 3], SamplingParams(max_tokens=60, ignore_eos=True))
    while engine.rounds is None or engine.rounds.counts.ahead == 0:
        engine.step()
    rounds = engine.rounds
    assert len(rounds._flights) == 1
    waiting = rounds._flights[0].page
    before = rounds.parts.state.report.read[waiting].clone()
    rounds._launch(is_steady=True)
    assert rounds._flights[-1].page != waiting
    assert rounds.parts.state.report.read[waiting].equal(before)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_what_is_recorded_is_all_that_is_asked_for(
    pair: Pair, shape: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = device_core(pair, shape)
    assert engine.rounds is not None
    graphs = engine.rounds.graphs
    recorded: set[Hashable] = set()

    def prepare(key: Hashable, call: Callable[[], None]) -> None:
        recorded.add(key)

    monkeypatch.setattr(graphs, "prepare", prepare)
    rng = random.Random(f"{shape}/{batch}")
    for n_positions in (12, 40, 70):
        for n_requests in range(1, batch + 1):
            engine.rounds.record(n_requests, n_positions)
    asked: set[Hashable] = set()
    graphs.watch = asked.add
    for _ in range(batch):
        prompt = [rng.randrange(1, 40) for _ in range(4)]
        engine.submit(prompt, SamplingParams(max_tokens=50, ignore_eos=True))
    finish_all(engine)
    assert asked and asked <= recorded
