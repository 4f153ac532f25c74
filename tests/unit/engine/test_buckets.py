"""Sizes of rounds: what fits, which graph does instead, when one is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.buckets import Bucket, Recorded
from aerie.engine.graphs import Graphs
from aerie.engine.sampler import EVERYTHING, GREEDY, Options
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import PLAIN, Pair, captured, core, finish_all, load_pair, outputs

LARGE = Bucket(seats=4, rows=16, columns=64, options=EVERYTHING, tile=16)
GRAPHS = GraphConfig(slots=(1, 2, 4), rows=(1, 2, 4, 8, 16, 24), columns=(32, 64, 128))
PLANNED = SpeculationConfig(policy="planner", top_k=3, depth=3, nodes=12)


@pytest.mark.parametrize(
    ("wanted", "is_held"),
    [
        (Bucket(4, 16, 64), True),
        (Bucket(2, 8, 32, options=Options(noise=True), tile=64), True),
        (Bucket(2, 14, 64), True),
        (Bucket(2, 15, 64), False),  # two empty seats verify their roots
        (Bucket(8, 8, 64), False),
        (Bucket(4, 16, 65), False),
    ],
)
def test_a_larger_bucket_holds_a_smaller_one(wanted: Bucket, is_held: bool) -> None:
    assert LARGE.holds(wanted) == is_held
    assert not replace(LARGE, options=GREEDY).holds(replace(wanted, options=EVERYTHING))


def test_recordings_keep_their_distance() -> None:
    graphs = Graphs("cpu")
    recorded = Recorded(graphs, every=3)
    small, tiny = Bucket(2, 4, 64), Bucket(1, 1, 64)
    assert recorded.bucket("verify", LARGE) == LARGE  # nothing else would do
    graphs.run(("verify", LARGE), lambda: None)
    for _ in range(2):
        recorded.next_round()
        assert recorded.bucket("verify", small) == LARGE
    recorded.next_round()
    assert recorded.bucket("verify", small) == small
    graphs.run(("verify", small), lambda: None)
    assert recorded.bucket("verify", tiny) == small
    beyond = replace(LARGE, columns=128)
    assert recorded.bucket("verify", beyond) == beyond


def test_shapes_are_chosen_among_the_recorded_ones() -> None:
    graphs = Graphs("cpu")
    recorded = Recorded(graphs, every=5)
    rest, shapes = Bucket(1, columns=64), (None, (), (1,), (3, 3))
    assert recorded.instead(rest, (1,), shapes) == []
    graphs.run(("draft", rest, (3, 3), None), lambda: None)
    assert recorded.instead(rest, (1,), shapes) == [(3, 3)]
    assert recorded.instead(rest, (3, 3), shapes) == []


def test_few_graphs_do_for_a_planner_and_the_text_is_the_same(pair_directory: Path) -> None:
    # Exact numerics know one size of rows here.
    pair = load_pair(pair_directory, "fast")
    jobs = [([n, 2], SamplingParams(max_tokens=50, ignore_eos=True)) for n in (1, 2, 3)]
    plain = outputs(core(pair, "fast", speculation=PLAIN), jobs)
    met = {}
    for every in (0, 1000):
        graphs = replace(GRAPHS, record_every=every)
        engine = core(pair, "fast", speculation=PLANNED, engine="graphs", graphs=graphs)
        ids = [engine.submit(*job) for job in jobs]
        finish_all(engine)
        assert [engine.request(i).output for i in ids] == plain
        met[every] = len(captured(engine).graphs.keys)
    assert met[1000] < met[0]


def test_a_batch_has_one_of_two_variants(pair: Pair) -> None:
    """Whatever is asked for: greedy, or everything."""
    engine = core(pair, speculation=PLANNED, engine="graphs")
    asked = (
        *({}, {"top_p": 0.5, "temperature": 1.0}, {"presence_penalty": 1.0}, {"logprobs": 2}),
        *({"logit_bias": {1: 2.0}}, {"min_tokens": 2}, {"temperature": 0.4}),
    )
    for options in asked:
        engine.submit([1, 2], SamplingParams(max_tokens=9, ignore_eos=True, **options))
        finish_all(engine)
    found = {key[1].options for key in captured(engine).graphs.keys if key[0] == "verify"}
    assert found == {GREEDY, EVERYTHING}
