"""Speculation on equals speculation off, token for token, whatever the tree, batch or order."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest

from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.params import SamplingParams
from aerie.engine.request import State
from tests.unit.engine.cores import (
    CHEAP,
    DEAR,
    LIMITS,
    Pair,
    assert_pool_is_unheld,
    core,
    finish_all,
    outputs,
)

SPECULATION = {
    "chain": SpeculationConfig(top_k=1, depth=4, nodes=5),
    "tree": SpeculationConfig(top_k=3, depth=3, nodes=12),
    "wide": SpeculationConfig(top_k=5, depth=2, nodes=20),
    "ngram": SpeculationConfig(method="ngram", depth=4, nodes=5),
    "merged": SpeculationConfig(method="eagle3+ngram", top_k=2, depth=3, nodes=9),
    "planned": SpeculationConfig(policy="planner", top_k=4, depth=4, nodes=20),
    "moody": SpeculationConfig(policy="planner", method="eagle3+ngram", top_k=3, depth=4, nodes=9),
    "cast": SpeculationConfig(policy="cast", top_k=3, depth=3, nodes=12),
}
PLANNERS = {"moody": DEAR}
PLAIN = SpeculationConfig(method="none")
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.7},
    "nucleus": {"temperature": 1.0, "top_p": 0.8, "top_k": 20, "min_p": 0.02},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "logit_bias": {3: 1.5, 9: -4.0},
    },
}
Job = tuple[list[int], SamplingParams]
Plainly = Callable[[str, int], tuple[list[Job], list[list[int]]]]
# Chunk size and page size of the runs at each batch size; large batches are slow in exact mode.
RUNS = {
    1: ((1, 1), (3, 2), (7, 3), (64, 16)),
    3: ((1, 1), (3, 2), (7, 3), (64, 16)),
    8: ((2, 1), (16, 5)),
    17: ((11, 4),),
}


def make_jobs(rng: random.Random, n_jobs: int, sampling: str) -> list[Job]:
    """Prompts of odd lengths, different budgets, some with stop ids."""
    jobs = []
    for index in range(n_jobs):
        length = rng.choice([1, 2, 3, 4, 5, 15, 16, 17, 33])
        prompt = [rng.randrange(LIMITS.vocabulary) for _ in range(length)]
        params = SamplingParams(
            max_tokens=rng.choice([1, 2, 5, 12]),
            seed=1000 * index + rng.randrange(1000),
            stop_token_ids=tuple(rng.sample(range(LIMITS.vocabulary), rng.choice([0, 2]))),
            ignore_eos=rng.random() < 0.5,
            **SAMPLING[sampling],  # type: ignore[arg-type]
        )
        jobs.append((prompt, params))
    return jobs


def run_in_random_order(engine: EngineCore, jobs: list[Job], rng: random.Random) -> list[list[int]]:
    """Submit at random moments, and cancel a few strangers in between."""
    waiting = list(enumerate(jobs))
    rng.shuffle(waiting)
    ids: dict[int, int] = {}
    strangers: list[int] = []
    while waiting or not engine.is_idle:
        for _ in range(rng.choice([0, 0, 1, 2])):
            if waiting:
                index, (prompt, params) = waiting.pop()
                ids[index] = engine.submit(prompt, params)
        if rng.random() < 0.2 and len(strangers) < 3:
            strangers.append(engine.submit([1, 2, 3], SamplingParams(max_tokens=9, seed=5)))
        if strangers and rng.random() < 0.3:
            engine.cancel(rng.choice(strangers))
        engine.step()
    assert all(engine.request(request_id).state is State.FINISHED for request_id in strangers)
    return [engine.request(ids[index]).output for index in range(len(jobs))]


def run_and_compare(
    pair: Pair, proposer: str, jobs: list[Job], plain: list[list[int]], cut: tuple[int, int]
) -> None:
    """An engine whose prompts are cut into chunks, and its KV into pages, writes the same."""
    chunk, page_size = cut
    rng = random.Random(f"{proposer}/{len(jobs)}/{cut}/{jobs[0][1].temperature}")
    engine = core(
        pair,
        speculation=SPECULATION[proposer],
        planner=PLANNERS.get(proposer, CHEAP),
        max_batch=rng.choice([1, 3, 17]),
        chunk=chunk,
        page_size=page_size,
        n_pages=4096 // page_size,
    )
    assert run_in_random_order(engine, jobs, rng) == plain
    assert_pool_is_unheld(engine)


@pytest.fixture(scope="module")
def plainly(pair: Pair) -> Plainly:
    """Jobs and what plain decoding writes; every proposer gets the same, so they are kept."""

    @cache
    def run(sampling: str, batch: int) -> tuple[list[Job], list[list[int]]]:
        jobs = make_jobs(random.Random(f"{sampling}/{batch}"), batch, sampling)
        return jobs, outputs(core(pair, speculation=PLAIN, max_batch=4), jobs)

    return run


@pytest.mark.parametrize("batch", RUNS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("proposer", SPECULATION)
def test_same_tokens_as_plain_decoding(
    pair: Pair, plainly: Plainly, proposer: str, sampling: str, batch: int
) -> None:
    """One cut each: over the four ways of sampling every proposer meets all cuts of its batch."""
    jobs, plain = plainly(sampling, batch)
    turn = list(SPECULATION).index(proposer) + list(SAMPLING).index(sampling)
    run_and_compare(pair, proposer, jobs, plain, RUNS[batch][turn % len(RUNS[batch])])


@pytest.mark.slow
@pytest.mark.parametrize("batch", RUNS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("proposer", SPECULATION)
def test_same_tokens_at_every_cut(pair: Pair, proposer: str, sampling: str, batch: int) -> None:
    """All cuts, and for every proposer prompts of its own."""
    jobs = make_jobs(random.Random(f"{proposer}/{sampling}/{batch}"), batch, sampling)
    plain = outputs(core(pair, speculation=PLAIN, max_batch=4), jobs)
    for cut in RUNS[batch]:
        run_and_compare(pair, proposer, jobs, plain, cut)


@pytest.mark.parametrize("proposer", SPECULATION)
def test_preemption_loses_nothing(pair: Pair, proposer: str) -> None:
    rng = random.Random(proposer)
    # Short prompts are all admitted; long outputs then fight for pages.
    jobs = [
        (
            [rng.randrange(LIMITS.vocabulary) for _ in range(4)],
            SamplingParams(max_tokens=30, temperature=0.7, seed=index, ignore_eos=True),
        )
        for index in range(4)
    ]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    planner = PLANNERS.get(proposer, CHEAP)
    engine = core(pair, speculation=SPECULATION[proposer], planner=planner, page_size=2, n_pages=46)
    assert outputs(engine, jobs) == plain
    preempted = sum(engine.request(index).statistics.preemptions for index in range(len(jobs)))
    assert preempted > 0, "the pool was large enough, so the test tests nothing"


def test_reference_backend_runs_the_whole_engine(pair: Pair) -> None:
    jobs = make_jobs(random.Random(4), 5, "nucleus")
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    for speculation in SPECULATION.values():
        assert outputs(core(pair, speculation=speculation, backend="reference"), jobs) == plain


def test_tokens_are_conserved(pair: Pair) -> None:
    """Emitted = accepted after clipping + one bonus a round, unless the bonus was clipped."""
    jobs = make_jobs(random.Random(11), 8, "greedy")
    engine = core(pair, speculation=SPECULATION["tree"])
    outputs(engine, jobs)
    for index in range(len(jobs)):
        request = engine.request(index)
        statistics = request.statistics
        bonus = len(request.output) - statistics.num_accepted_tokens
        assert statistics.target_passes - 1 <= bonus <= statistics.target_passes


def test_speculation_saves_target_passes(pair: Pair) -> None:
    """On text the target writes itself the trained head is right more often than not."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    engine = core(pair, speculation=SPECULATION["tree"])
    request_id = engine.submit([1], params)
    finish_all(engine)
    statistics = engine.request(request_id).statistics
    assert statistics.num_accepted_tokens > 0
    assert statistics.target_passes < 40
