"""A request that wants no drafts gets none, and all get the tokens of plain decoding."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import Pair, core, finish_all, outputs
from tests.unit.engine.test_lossless import (
    PLAIN,
    SPECULATION,
    Job,
    make_jobs,
    run_in_random_order,
    speculating,
)


def mixed_jobs(seed: str, n_jobs: int) -> list[Job]:
    """Long enough to meet, every other one without drafts."""
    jobs = make_jobs(random.Random(seed), n_jobs, "warm")
    return [
        (prompt, replace(params, max_tokens=12, ignore_eos=True, speculative=index % 2 == 0))
        for index, (prompt, params) in enumerate(jobs)
    ]


@pytest.mark.parametrize("proposer", SPECULATION)
def test_mixed_batches_give_the_tokens_of_plain_decoding(
    pair: Pair, launcher: str, proposer: str
) -> None:
    jobs = mixed_jobs(proposer, 6)
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine = speculating(pair, proposer, launcher)()
    assert run_in_random_order(engine, jobs, random.Random(proposer)) == plain


def test_without_drafts_every_token_is_a_pass_of_its_own(pair: Pair, launcher: str) -> None:
    engine = speculating(pair, "tree", launcher)()
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


@pytest.mark.parametrize("proposer", ["tree", "merged", "planned"])
def test_a_batch_that_wants_none_leaves_the_draft_alone(
    pair: Pair, launcher: str, proposer: str
) -> None:
    engine = speculating(pair, proposer, launcher)()
    ran: list[str] = []
    engine.launcher.graphs.watch = lambda key: ran.append(key[0])
    params = SamplingParams(max_tokens=8, ignore_eos=True, speculative=False)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, params)
    while not engine.is_idle:
        engine.step()
        assert all(len(tree.nodes) == 1 for tree in engine.launcher.trees.values())
    assert "draft" not in ran and ran.count("close") >= 8


def test_what_the_draft_was_not_shown_is_not_found_by_others(pair: Pair, launcher: str) -> None:
    """Under a policy that always drafts nothing keeps the features of rounds without drafts."""
    engine = speculating(pair, "tree", launcher)(page_size=2)
    prompt = [1, 5, 9, 2, 6, 3, 8]
    alone = SamplingParams(max_tokens=20, ignore_eos=True, speculative=False)
    first = engine.request(engine.submit(prompt, alone))
    while len(first.output) < 8:
        engine.step()
    # Its neighbour is drafted for, and from then on the first request's rows are shown again.
    engine.submit([4, 4], SamplingParams(max_tokens=20, ignore_eos=True))
    finish_all(engine)
    again = engine.request(engine.submit(first.tokens, SamplingParams(max_tokens=4)))
    finish_all(engine)
    assert again.statistics.reused_tokens == 6, "the prompt's full pages, nothing of the answer"
