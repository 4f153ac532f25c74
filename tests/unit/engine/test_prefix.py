"""Prefix reuse: the same tokens, fewer computed, and nothing found that was not written."""

from __future__ import annotations

import random

import pytest

from aerie.config import SpeculationConfig
from aerie.engine.pages import Ledger, LedgerError
from aerie.engine.params import SamplingParams
from aerie.engine.prefix import PrefixCache
from tests.unit.engine.cores import LIMITS, Pair, assert_pool_is_unheld, core, finish_all, outputs
from tests.unit.engine.test_engine import assert_kv_is_fresh

TREE = SpeculationConfig(top_k=3, depth=3, nodes=10)
PLAIN = SpeculationConfig(method="none")


@pytest.mark.parametrize(("method", "page_size"), [("eagle3", 1), ("eagle3", 3), ("none", 4)])
def test_reuse_changes_nothing_but_the_work(pair: Pair, page_size: int, method: str) -> None:
    """Prompts that share beginnings of every length, boundary tokens equal and not."""
    rng = random.Random(page_size)
    base = [rng.randrange(LIMITS.vocabulary) for _ in range(20)]
    prompts = [base[:cut] + [rng.randrange(LIMITS.vocabulary)] for cut in range(4, 17)]
    prompts += [base, base, base[:7]]
    params = SamplingParams(max_tokens=6, temperature=0.7, seed=4, ignore_eos=True)
    jobs = [(prompt, params) for prompt in prompts]
    speculation = SpeculationConfig(method=method, top_k=3, depth=3, nodes=10)
    cold = core(pair, speculation=PLAIN, prefix_reuse=False)
    expected = outputs(cold, jobs)
    engine = core(pair, speculation=speculation, page_size=page_size, n_pages=400)
    for _ in range(2):
        found = []
        for job in jobs:
            request_id = engine.submit(*job)
            engine.step()
            for request in engine._scheduler.running:
                if request.held.pages:
                    assert_kv_is_fresh(pair, engine, request)
            finish_all(engine)
            found.append(engine.request(request_id).output)
        assert found == expected
    last = engine.request(request_id).statistics
    assert last.reused_tokens > 0
    assert last.reused_tokens + last.prefill_tokens == len(prompts[-1]) - 1
    assert_pool_is_unheld(engine)


def test_drafts_are_as_good_on_a_reused_prefix(pair: Pair) -> None:
    """The draft's own KV is reused too: acceptance must not depend on who computed the prefix."""
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    prompt = [1, 5, 9, 2, 6, 3, 8, 4, 7, 10, 12]
    engine = core(pair, speculation=TREE, page_size=2)
    ids = []
    for _ in range(3):
        ids.append(engine.submit(prompt, params))
        finish_all(engine)
    first, *others = [engine.request(request_id).statistics for request_id in ids]
    assert first.reused_tokens == 0
    for other in others:
        assert other.reused_tokens > 0
        assert other.num_accepted_tokens == first.num_accepted_tokens
        assert other.target_passes == first.target_passes


def test_kept_pages_make_room_when_they_are_needed(pair: Pair) -> None:
    rng = random.Random(1)
    engine = core(pair, speculation=TREE, page_size=2, n_pages=40)
    for seed in range(12):
        prompt = [rng.randrange(LIMITS.vocabulary) for _ in range(15)]
        engine.submit(prompt, SamplingParams(max_tokens=8, seed=seed))
        finish_all(engine)
        assert_pool_is_unheld(engine)


def test_pages_are_taken_ahead_of_a_cache_that_holds_all_others(pair: Pair) -> None:
    """In the end every free page is a kept one: a table written every page would cost a launch."""
    rng = random.Random(2)
    engine = core(pair, speculation=TREE, page_size=2, n_pages=400)
    ledger = engine.memory.ledger
    while ledger.n_free > 8:
        prompt = [rng.randrange(LIMITS.vocabulary) for _ in range(40)]
        engine.submit(prompt, SamplingParams(max_tokens=2, ignore_eos=True))
        finish_all(engine)
    request_id = engine.submit([1, 2, 3], SamplingParams(max_tokens=40, ignore_eos=True))
    engine.step()
    engine.step()
    request = engine.request(request_id)
    scratch = engine.parts.proposer.scratch
    assert len(request.held.pages) > ledger.pages_for(request.seq_len + scratch + 10)


def test_the_token_after_a_page_belongs_to_its_key() -> None:
    ledger = Ledger(10, 2)
    cache = PrefixCache(ledger)
    pages = ledger.take(3)
    assert pages is not None
    cache.insert([1, 2, 3, 4, 5, 6, 7], pages, 6)
    assert cache.find([1, 2, 3, 4, 5, 6, 7, 8, 9]) == pages
    assert cache.find([1, 2, 3, 4, 9, 6, 7, 8, 9]) == pages[:1]
    assert cache.find([1, 2, 9, 4, 5, 6]) == []
    assert cache.find([1, 2, 3]) == []
    ledger.give(pages)
    assert (ledger.n_free, ledger.n_idle) == (6, 3)
    cache.make_room(8)
    assert cache.find([1, 2, 3, 4, 5, 6, 7, 8, 9]) == pages[:1]


def test_the_ledger_refuses_what_does_not_add_up() -> None:
    ledger = Ledger(4, 2)
    pages = ledger.take(2)
    assert pages is not None
    assert ledger.take(2) is None
    for wrong in (
        lambda: ledger.give([3]),
        lambda: ledger.share([3]),
        lambda: ledger.keep(3),
        lambda: ledger.drop(pages[0]),
        lambda: ledger.audit([[pages[0]]]),
    ):
        with pytest.raises(LedgerError):
            wrong()
    ledger.audit([pages])
