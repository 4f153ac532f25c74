"""Rounds on fixed buffers give the tokens of plain decoding, whoever joins, ends or leaves."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.device_round import Bucket, most_rows
from aerie.engine.engine import EngineCore
from aerie.engine.params import SamplingParams
from aerie.errors import UsageError
from tests.unit.engine.cores import Pair, assert_pool_is_unheld, core, finish_all, outputs
from tests.unit.engine.test_engine import assert_kv_is_fresh
from tests.unit.engine.test_lossless import PLAIN, make_jobs, run_in_random_order

SHAPES = {
    "none": PLAIN,
    "chain": SpeculationConfig(top_k=1, depth=4, nodes=5),
    "tree": SpeculationConfig(top_k=3, depth=3, nodes=12),
}
# Small buckets, so that a run crosses several of each kind.
BUCKETS = GraphConfig(slots=(1, 2, 4), rows=(4, 16, 24), columns=(32, 64))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("sampling", ["greedy", "warm"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_tokens_as_plain_decoding(pair: Pair, shape: str, sampling: str, batch: int) -> None:
    rng = random.Random(f"device/{shape}/{sampling}/{batch}")
    jobs = make_jobs(rng, batch, sampling)
    plain = outputs(core(pair, speculation=PLAIN, engine="eager"), jobs)
    for chunk, page_size in ((3, 2), (64, 16))[: 1 if batch > 1 else 2]:
        engine = core(
            pair,
            speculation=SHAPES[shape],
            engine="graphs",
            graphs=BUCKETS,
            max_batch=rng.choice([1, 3, 4]),
            chunk=chunk,
            page_size=page_size,
            n_pages=2048 // page_size,
        )
        assert run_in_random_order(engine, jobs, rng) == plain
        assert_pool_is_unheld(engine)
        assert engine.rounds is not None and engine.rounds.counts.rounds > 0


def device_core(pair: Pair, shape: str = "tree", **settings: Any) -> EngineCore:
    return core(pair, speculation=SHAPES[shape], engine="graphs", graphs=BUCKETS, **settings)


def test_a_request_with_other_options_takes_its_batch_to_the_eager_loop(pair: Pair) -> None:
    rng = random.Random(8)
    jobs = make_jobs(rng, 3, "warm") + make_jobs(rng, 2, "nucleus")
    # Long enough that batches with and without the two meet in both orders.
    jobs = [(prompt, replace(params, max_tokens=14, ignore_eos=True)) for prompt, params in jobs]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine = device_core(pair)
    assert run_in_random_order(engine, jobs, rng) == plain
    assert engine.rounds is not None
    assert engine.rounds.counts.eager.keys() == {"top_k"}
    assert engine.rounds.counts.rounds > 0
    assert_pool_is_unheld(engine)


@pytest.mark.parametrize("shape", ["none", "tree"])
def test_preemption_loses_nothing(pair: Pair, shape: str) -> None:
    params = SamplingParams(max_tokens=14, temperature=0.7, ignore_eos=True)
    jobs = [([1 + seed] * 4, replace(params, seed=seed)) for seed in range(3)]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine = device_core(pair, shape, page_size=2, n_pages=24)
    assert outputs(engine, jobs) == plain
    assert sum(engine.request(index).statistics.preemptions for index in range(3)) > 0


def test_committed_kv_equals_a_fresh_prefill(pair: Pair) -> None:
    engine = device_core(pair, page_size=3, n_pages=300)
    for seed in range(3):
        prompt = list(range(1, 4 + 5 * seed))
        engine.submit(prompt, SamplingParams(max_tokens=12, seed=seed, ignore_eos=True))
    while not engine.is_idle:
        engine.step()
        for request in engine._scheduler.running:
            if request.held.pages:
                assert_kv_is_fresh(pair, engine, request)


def test_the_draft_sees_what_the_eager_loop_shows_it(pair: Pair) -> None:
    """Same drafts, not only same tokens: every round accepts as much in both loops."""
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    counted = []
    for engine in (core(pair, speculation=SHAPES["tree"], engine="eager"), device_core(pair)):
        # One token has no features: both loops begin with the root alone.
        ids = [engine.submit([first], params) for first in (1, 2, 3)]
        finish_all(engine)
        counted.append([engine.request(request_id).statistics for request_id in ids])
    assert counted[0] == counted[1]
    assert sum(statistics.num_accepted_tokens for statistics in counted[0]) > 0


def test_poisoned_logits_fail_one_request_alone(pair: Pair) -> None:
    """A token whose row is not a number: as a draft it is not trusted, as a root it is fatal."""
    bad = 60
    embedding = pair.target.embedding.clone()
    embedding[bad] = float("nan")
    broken = Pair(replace(pair.target, embedding=embedding), pair.head)
    engine = device_core(broken)
    good = engine.submit([1, 2, 3], SamplingParams(max_tokens=8))
    poisoned = engine.submit([1, 2, bad], SamplingParams(max_tokens=8))
    finish_all(engine)
    ended = engine.request(poisoned).ended
    assert ended is not None and ended.reason == "error"
    assert "NaN" in str(ended.error)
    plain = core(pair, speculation=PLAIN)
    assert (
        engine.request(good).output
        == outputs(plain, [([1, 2, 3], SamplingParams(max_tokens=8))])[0]
    )


def test_steady_rounds_touch_the_host_once(pair: Pair) -> None:
    """Nobody joins or leaves: nothing is written into the buffers, only the report is read."""
    engine = device_core(pair, page_size=16)
    engine.submit([1, 2, 3], SamplingParams(max_tokens=30, ignore_eos=True))
    finish_all(engine)
    assert engine.rounds is not None
    assert engine.rounds.counts.seatings <= 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"speculation": SpeculationConfig(method="ngram")}, "n-gram"),
        ({"speculation": SpeculationConfig(top_k=1, depth=2, nodes=3, rule="coins")}, "coins"),
    ],
)
def test_what_cannot_be_captured_is_refused_when_asked_for(
    pair: Pair, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        core(pair, engine="graphs", **settings)
    assert core(pair, engine="auto", **settings).rounds is None


@pytest.mark.parametrize("shape", SHAPES)
def test_no_request_has_more_rows_than_attention_is_told(pair: Pair, shape: str) -> None:
    engine = device_core(pair, shape, max_batch=4)
    assert engine.rounds is not None
    parts = engine.rounds.parts
    # As on a GPU, where attention leaves the padding alone.
    tight = replace(parts, has_inert_request=False)
    seen = []

    class Recording:
        def forward(self, rows: Any, *others: Any) -> Any:
            counts = rows.qo_indptr.diff()[:-1]
            bucket = Bucket(len(counts), rows.n_rows)
            seen.append((int(counts.max()), most_rows(tight, bucket)))
            return parts.target.forward(rows, *others)

    engine.rounds.parts = replace(parts, target=Recording())  # type: ignore[arg-type]
    jobs = make_jobs(random.Random(f"rows/{shape}"), 5, "greedy")
    outputs(engine, jobs)
    assert seen and all(actual <= told for actual, told in seen)
    # Told by the tree, not by the rows of the whole batch.
    assert max(told for _, told in seen) <= {"none": 1, "chain": 5, "tree": 12}[shape]
