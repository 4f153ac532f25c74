"""Speculation on equals speculation off, token for token, whatever the tree, batch or order."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial

import pytest

from aerie.engine.engine import EngineCore
from aerie.requests.params import SamplingParams
from aerie.requests.request import State
from tests.unit.engine.cores import (
    CHEAP,
    LAUNCHERS,
    LIMITS,
    PLAIN,
    PLANNERS,
    SPECULATION,
    Pair,
    assert_pool_is_unheld,
    core,
    finish_all,
    outputs,
)

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
EngineOf = Callable[..., EngineCore]
Plainly = Callable[[str, int], tuple[list[Job], list[list[int]]]]
# Chunk size and page size of the runs at each batch size; large batches are slow in exact mode.
RUNS = {
    1: ((1, 1), (3, 2), (7, 3), (64, 16)),
    3: ((1, 1), (3, 2), (7, 3), (64, 16)),
    8: ((2, 1), (16, 5)),
    17: ((11, 4),),
}


def speculating(pair: Pair, proposer: str, launcher: str) -> EngineOf:
    """Engines of one proposer and launcher; other settings are theirs."""
    planner = PLANNERS.get(proposer, CHEAP)
    speculation = SPECULATION[proposer]
    return partial(core, pair, speculation=speculation, planner=planner, engine=launcher)


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


def written(engine_of: EngineOf, jobs: list[Job], cut: tuple[int, int]) -> list[list[int]]:
    """What an engine writes whose prompts are cut into chunks, and its KV into pages."""
    chunk, page_size = cut
    rng = random.Random(f"{len(jobs)}/{cut}/{jobs[0][1].temperature}")
    engine = engine_of(
        max_batch=rng.choice([1, 3, 17]),
        chunk=chunk,
        page_size=page_size,
        n_pages=4096 // page_size,
    )
    found = run_in_random_order(engine, jobs, rng)
    assert_pool_is_unheld(engine)
    return found


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
    """One cut and launcher each: over the ways of sampling every proposer meets all of them."""
    jobs, plain = plainly(sampling, batch)
    own, way = list(SPECULATION).index(proposer), list(SAMPLING).index(sampling)
    cut = RUNS[batch][(own + way) % len(RUNS[batch])]
    launcher = LAUNCHERS[(own + way // 2) % len(LAUNCHERS)]
    assert written(speculating(pair, proposer, launcher), jobs, cut) == plain


@pytest.mark.parametrize("sampling", ["greedy", "nucleus"])
def test_drafts_in_eight_bits_are_verified_like_any_other(
    eight_bit_pair: Pair, plainly: Plainly, sampling: str, launcher: str
) -> None:
    jobs, plain = plainly(sampling, 3)
    assert written(speculating(eight_bit_pair, "tree", launcher), jobs, (7, 3)) == plain


@pytest.mark.slow
@pytest.mark.parametrize("batch", RUNS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("proposer", SPECULATION)
def test_same_tokens_at_every_cut(
    pair: Pair, launcher: str, proposer: str, sampling: str, batch: int
) -> None:
    """All cuts with both launchers, and for every proposer prompts of its own."""
    jobs = make_jobs(random.Random(f"{proposer}/{sampling}/{batch}"), batch, sampling)
    plain = outputs(core(pair, speculation=PLAIN, max_batch=4), jobs)
    for cut in RUNS[batch]:
        assert written(speculating(pair, proposer, launcher), jobs, cut) == plain


@pytest.mark.parametrize("proposer", SPECULATION)
def test_preemption_loses_nothing(pair: Pair, launcher: str, proposer: str) -> None:
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
    engine = speculating(pair, proposer, launcher)(page_size=2, n_pages=46)
    assert outputs(engine, jobs) == plain
    preempted = sum(engine.request(index).statistics.preemptions for index in range(len(jobs)))
    assert preempted > 0, "the pool was large enough, so the test tests nothing"


@pytest.mark.parametrize("backend", ["reference", "pytorch"])
def test_any_backend_runs_the_whole_engine(pair: Pair, launcher: str, backend: str) -> None:
    jobs = make_jobs(random.Random(4), 5, "nucleus")
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    for proposer in SPECULATION:
        engine = speculating(pair, proposer, launcher)(backend=backend)
        assert outputs(engine, jobs) == plain, proposer


def test_tokens_are_conserved(pair: Pair, launcher: str) -> None:
    """Emitted = accepted after clipping + one bonus a round, unless the bonus was clipped."""
    jobs = make_jobs(random.Random(11), 8, "greedy")
    engine = speculating(pair, "tree", launcher)()
    outputs(engine, jobs)
    for index in range(len(jobs)):
        request = engine.request(index)
        statistics = request.statistics
        bonus = len(request.output) - statistics.num_accepted_tokens
        assert statistics.target_passes - 1 <= bonus <= statistics.target_passes


def test_speculation_saves_target_passes(pair: Pair) -> None:
    """On text the target writes itself the trained head is right more often than not.

    And by the same trees with either launcher: every round accepts as much.
    """
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    counted = []
    for launcher in LAUNCHERS:
        engine = speculating(pair, "tree", launcher)()
        ids = [engine.submit(prompt, params) for prompt in ([1], [2, 3], [3] * 5)]
        finish_all(engine)
        counted.append([engine.request(request_id).statistics for request_id in ids])
    assert counted[0] == counted[1]
    assert counted[0][0].num_accepted_tokens > 0
    assert counted[0][0].target_passes < 40
