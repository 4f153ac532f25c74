"""A request that wants no drafts gets none, and everybody the tokens of plain decoding."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aerie.engine.params import SamplingParams
from tests.unit.engine.cores import CHEAP, Pair, core, finish_all, outputs
from tests.unit.engine.test_device_rounds import device_core
from tests.unit.engine.test_lossless import (
    PLAIN,
    PLANNERS,
    SPECULATION,
    Job,
    make_jobs,
    run_in_random_order,
)


def mixed_jobs(seed: str, n_jobs: int) -> list[Job]:
    """Long enough to meet, every other one without drafts."""
    jobs = make_jobs(random.Random(seed), n_jobs, "warm")
    return [
        (prompt, replace(params, max_tokens=12, ignore_eos=True, speculative=index % 2 == 0))
        for index, (prompt, params) in enumerate(jobs)
    ]


@pytest.mark.parametrize("proposer", [*SPECULATION, "captured"])
def test_mixed_batches_give_the_tokens_of_plain_decoding(pair: Pair, proposer: str) -> None:
    jobs = mixed_jobs(proposer, 6)
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    if proposer == "captured":
        engine = device_core(pair)
    else:
        planner = PLANNERS.get(proposer, CHEAP)
        engine = core(pair, speculation=SPECULATION[proposer], planner=planner)
    assert run_in_random_order(engine, jobs, random.Random(proposer)) == plain


def test_without_drafts_every_token_is_a_pass_of_its_own(pair: Pair) -> None:
    engine = core(pair, speculation=SPECULATION["tree"])
    ids = [engine.submit(prompt, params) for prompt, params in mixed_jobs("counted", 4)]
    finish_all(engine)
    for index, request_id in enumerate(ids):
        request = engine.request(request_id)
        counts = request.statistics
        if index % 2:
            assert (counts.num_drafts, counts.num_draft_tokens) == (0, 0)
            assert counts.target_passes == len(request.output)
        else:
            assert counts.num_drafts > 0


def test_a_batch_that_wants_none_leaves_the_draft_alone(pair: Pair) -> None:
    engine = core(pair, speculation=SPECULATION["planned"])
    params = SamplingParams(max_tokens=8, ignore_eos=True, speculative=False)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, params)
    while not engine.is_idle:
        engine.step()
        outcome = engine.last_outcome
        assert outcome is not None and not outcome.is_extended
        assert int(outcome.chosen.sum()) == len(outcome.request_ids)
