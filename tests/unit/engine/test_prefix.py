"""Prefix reuse: the same tokens, fewer computed, and nothing found that was not written."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from aerie.assemble.sizes import scratch_of
from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.kv.pages import Ledger, LedgerError
from aerie.kv.prefix import PrefixCache
from aerie.requests.params import SamplingParams
from aerie.requests.request import Holding, Request
from tests.unit.engine.cores import (
    CHEAP,
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
from tests.unit.engine.test_engine import assert_kv_is_fresh

TREE = SpeculationConfig(top_k=3, depth=3, nodes=10)


@pytest.mark.parametrize(("method", "page_size"), [("eagle3", 1), ("eagle3", 3), ("none", 4)])
def test_reuse_changes_nothing_but_the_work(
    pair: Pair, launcher: str, page_size: int, method: str
) -> None:
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
    sizes = {"page_size": page_size, "n_pages": 400}
    engine = core(pair, speculation=speculation, engine=launcher, **sizes)
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


def test_drafts_are_as_good_on_a_reused_prefix(pair: Pair, launcher: str) -> None:
    """The draft's own KV is reused too: acceptance must not depend on its origin."""
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    prompt = [1, 5, 9, 2, 6, 3, 8, 4, 7, 10, 12]
    engine = core(pair, speculation=TREE, page_size=2, engine=launcher)
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


@pytest.mark.parametrize("proposer", ["tree", "merged", "planned", "moody"])
def test_speculation_finds_what_plain_decoding_finds(
    pair: Pair, launcher: str, proposer: str
) -> None:
    """The hits of a conversation whose turns hold the answers before, one after the other."""
    hits: dict[str, list[int]] = {}
    for name, speculation in (("none", PLAIN), (proposer, SPECULATION[proposer])):
        planner = PLANNERS.get(name, CHEAP)
        sizes = {"page_size": 4, "n_pages": 400}
        engine = core(pair, speculation=speculation, planner=planner, engine=launcher, **sizes)
        text, hits[name] = [1, 2, 3], []
        for turn in range(6):
            params = SamplingParams(max_tokens=4 + 3 * turn, ignore_eos=True, seed=turn)
            request_id = engine.submit(text, params)
            finish_all(engine)
            request = engine.request(request_id)
            hits[name].append(request.statistics.reused_tokens)
            text = [*request.tokens, 7 + turn]
    assert hits[proposer] == hits["none"]
    assert hits["none"][-1] > 40


@pytest.mark.parametrize("proposer", ["none", "tree", "planned"])
def test_full_pages_of_a_running_request_are_found(
    pair: Pair, launcher: str, proposer: str
) -> None:
    """A newcomer with the text so far shares its pages while the first request goes on."""
    speculation = PLAIN if proposer == "none" else SPECULATION[proposer]
    engine = core(pair, speculation=speculation, engine=launcher, page_size=2)
    prompt = [1, 5, 9, 2, 6]
    first = engine.submit(prompt, SamplingParams(max_tokens=60, ignore_eos=True))
    request = engine.request(first)
    reused = []
    for n_output in (2, 10, 20):
        while len(request.output) < n_output:
            engine.step()
        text = list(request.tokens)
        short = SamplingParams(max_tokens=3, ignore_eos=True)
        second = engine.request(engine.submit([*text, 3], short))
        engine.step()
        assert request.ended is None, "it still runs"
        reused.append(second.statistics.reused_tokens)
        finish_all_but(engine, request)
        expected = outputs(core(pair, speculation=PLAIN), [([*text, 3], short)])
        assert [second.output] == expected
        # All but what a round in flight has not shown to the draft, and the page that fills.
        assert reused[-1] >= len(text) - 2 - 2 * (1 + (speculation.depth or 0))
    assert reused == sorted(set(reused))


def finish_all_but(engine: EngineCore, request: Request) -> None:
    while [other for other in (*engine.running, *engine.waiting) if other is not request]:
        engine.step()


def test_kept_pages_make_room_when_they_are_needed(pair: Pair, launcher: str) -> None:
    rng = random.Random(1)
    engine = core(pair, speculation=TREE, page_size=2, n_pages=40, engine=launcher)
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
    needed = request.seq_len + scratch_of(engine.config)
    assert len(request.held.pages) > ledger.pages_for(needed + 10)


def test_the_token_after_a_page_belongs_to_its_key() -> None:
    ledger = Ledger(10, 2)
    cache = PrefixCache(ledger)
    pages = ledger.take(3)
    assert pages is not None
    cache.insert([1, 2, 3, 4, 5, 6, 7], Holding(pages), 6)

    def found(tokens: list[int]) -> list[int]:
        return [node.page for node in cache.find(tokens)]

    assert found([1, 2, 3, 4, 5, 6, 7, 8, 9]) == pages
    assert found([1, 2, 3, 4, 9, 6, 7, 8, 9]) == pages[:1]
    assert found([1, 2, 9, 4, 5, 6]) == []
    assert found([1, 2, 3]) == []
    ledger.give(pages)
    assert (ledger.n_free, ledger.n_idle) == (6, 3)
    cache.make_room(8)
    assert found([1, 2, 3, 4, 5, 6, 7, 8, 9]) == pages[:1]


def test_a_text_is_indexed_where_the_index_stopped() -> None:
    """Pages fill one by one; those that another request indexed before are passed, not replaced."""
    ledger = Ledger(10, 2)
    cache = PrefixCache(ledger)
    first, second = Holding(ledger.take(3) or []), Holding(ledger.take(3) or [])
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    cache.insert(text[:3], first, 2)
    assert [node.page for node in cache.find(text)] == first.pages[:1]
    cache.insert(text[:5], second, 4)
    assert [node.page for node in cache.find(text)] == [first.pages[0], second.pages[1]]
    cache.insert(text[:8], first, 7)
    assert first.n_indexed == 3
    wanted = [first.pages[0], second.pages[1], first.pages[2]]
    assert [node.page for node in cache.find(text)] == wanted


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


def test_the_oldest_idle_page_is_found_at_once() -> None:
    """A dict looks at the gaps at its front, of all that was given up since it last grew."""
    ledger = Ledger(100, 2)
    pages = ledger.take(99) or []
    for page in pages:
        ledger.keep(page)
    ledger.give(pages)
    assert isinstance(ledger._idle, OrderedDict)
    found = []
    while (page := ledger.oldest_idle) is not None:
        ledger.drop(page)
        found.append(page)
    assert found == pages[::-1]
