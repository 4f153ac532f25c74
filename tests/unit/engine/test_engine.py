"""The engine's promises beside losslessness: errors, memory, cancellation, coins, logprobs."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.attention.rows import Bounds, causal_rows
from aerie.config import EngineConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.errors import UnknownNameError, UsageError
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request, State
from tests.unit.attention.trees import pad_rows
from tests.unit.engine.cores import (
    BUCKETS,
    LIMITS,
    PLAIN,
    Pair,
    assert_pool_is_unheld,
    core,
    finish_all,
    load_pair,
    outputs,
)

TREE = SpeculationConfig(top_k=3, depth=3, nodes=10)


def fresh_kv(pair: Pair, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a text prefilled alone, in one piece. [layers, tokens, heads, dim]"""
    n = len(tokens)
    ends = torch.tensor([0, n], dtype=torch.int32)
    slots = torch.arange(1, n + 1, dtype=torch.int32)
    rows = pad_rows(causal_rows(torch.tensor(tokens), ends, ends, slots, Bounds(n, n)), 32)
    pool = pair.target.allocate_pool(n + 1)
    pair.target.forward(rows, pool, torch.zeros(0, dtype=torch.int64))
    return pool.keys[:, 1:], pool.values[:, 1:]


def log_probabilities(pair: Pair, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] of a text read alone, in one piece."""
    n = len(tokens)
    ends = torch.tensor([0, n], dtype=torch.int32)
    slots = torch.arange(1, n + 1, dtype=torch.int32)
    rows = pad_rows(causal_rows(torch.tensor(tokens), ends, ends, slots, Bounds(n, n)), 32)
    output = pair.target.forward(rows, pair.target.allocate_pool(n + 1), torch.arange(n))
    return output.logits.log_softmax(-1)


def assert_kv_is_fresh(pair: Pair, engine: EngineCore, request: Request) -> None:
    slots = engine.memory.slots(request)[: request.seq_len].long()
    keys, values = fresh_kv(pair, request.tokens[: request.seq_len])
    assert torch.equal(engine.launcher.parts.pool.keys[:, slots], keys)
    assert torch.equal(engine.launcher.parts.pool.values[:, slots], values)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_committed_kv_equals_a_fresh_prefill(pair: Pair, launcher: str, page_size: int) -> None:
    sizes = {"page_size": page_size, "n_pages": 600, "chunk": 5}
    engine = core(pair, speculation=TREE, engine=launcher, **sizes)
    for seed in range(3):
        prompt = list(range(1, 4 + 5 * seed))
        engine.submit(prompt, SamplingParams(max_tokens=12, seed=seed, ignore_eos=True))
    while not engine.is_idle:
        engine.step()
        for request in engine._scheduler.running:
            if request.held.pages and request.seq_len:
                assert_kv_is_fresh(pair, engine, request)


@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        ([], {}, "the prompt is empty"),
        (list(range(50)) * 2, {}, "the prompt has 100 tokens, the context holds 96"),
        ([61], {}, "token id 61 is outside the vocabulary of 61"),
        ([1], {"stop_token_ids": (99,)}, "token id 99 is outside"),
        ([1], {"logit_bias": {70: 1.0}}, "token id 70 is outside"),
    ],
)
def test_impossible_requests_are_refused_alone(
    pair: Pair, prompt: list[int], settings: dict[str, Any], said: str
) -> None:
    engine = core(pair, speculation=TREE)
    kept = engine.submit([1, 2, 3], SamplingParams(max_tokens=5))
    with pytest.raises(UsageError, match=said):
        engine.submit(prompt, SamplingParams(**settings))
    finish_all(engine)
    assert engine.request(kept).ended is not None


def test_a_pool_too_small_for_one_request_says_so(pair: Pair) -> None:
    engine = core(pair, speculation=TREE, n_pages=4, page_size=4)
    with pytest.raises(UsageError, match=r"the pool has 12: raise cache\.n_pages"):
        engine.submit([1, 2, 3], SamplingParams(max_tokens=40))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {1: math.inf}}, "logit_bias"),
        ({"stop": ("",)}, "stop string is empty"),
        ({"n": 0}, "n is 0"),
    ],
)
def test_impossible_options_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SamplingParams(**settings)


def test_unknown_configuration_keys_are_errors() -> None:
    with pytest.raises(UnknownNameError, match="did you mean depth"):
        EngineConfig.from_mapping({"speculation": {"deepth": 3}})
    with pytest.raises(UnknownNameError, match="did you mean speculation"):
        EngineConfig.from_mapping({"speculations": {}})
    with pytest.raises(UnknownNameError, match="did you mean eagle3"):
        SpeculationConfig(method="eagle")


def test_names_other_engines_use_are_understood() -> None:
    text = '{"method": "eagle3", "model": "some/head", "num_speculative_tokens": 3}'
    chain, draft = SpeculationConfig.from_vllm(text)
    assert (chain.depth, chain.top_k, chain.nodes, draft) == (3, 1, 4, "some/head")
    with pytest.raises(UnknownNameError, match="did you mean method"):
        SpeculationConfig.from_vllm('{"methode": "eagle3"}')


def test_poisoned_logits_fail_one_request_alone(pair: Pair, launcher: str) -> None:
    """A token whose row is not a number: as a draft it is not trusted, as a root it is fatal."""
    embedding = pair.target.embedding.clone()
    embedding[7] = torch.nan
    poisoned = Pair(replace(pair.target, embedding=embedding), pair.head)
    params = SamplingParams(max_tokens=8, logit_bias={7: -1e9}, ignore_eos=True)
    good = [[1, 2, 3], [4, 5], [9, 8, 10, 11]]
    alone = outputs(core(pair, speculation=PLAIN), [(prompt, params) for prompt in good])
    engine = core(poisoned, speculation=TREE, engine=launcher)
    ids = [engine.submit(prompt, params) for prompt in (good[0], [3, 7, 1], *good[1:])]
    finish_all(engine)
    bad = engine.request(ids[1])
    assert bad.ended is not None and bad.ended.reason == "error"
    assert "NaN" in str(bad.ended.error)
    assert [engine.request(ids[i]).output for i in (0, 2, 3)] == alone
    assert_pool_is_unheld(engine)


@pytest.mark.parametrize("speculation", [PLAIN, TREE])
def test_a_request_has_any_number_of_stop_ids(
    pair: Pair, launcher: str, speculation: SpeculationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device knows as many as K7's card allows; the host clips at the others."""
    jobs = [
        (
            [first, 2, 3],
            SamplingParams(
                max_tokens=40,
                temperature=0.9,
                seed=first,
                ignore_eos=True,
                stop_token_ids=tuple(range(20 + first, 32 + first)),
            ),
        )
        for first in range(6)
    ]
    expected = outputs(core(pair, speculation=PLAIN), jobs)
    assert len({len(output) for output in expected}) > 3, "they stop at different times"
    for module in ("engine.state", "engine.engine", "engine.audit", "requests.admission"):
        monkeypatch.setattr(f"aerie.{module}.MAX_STOPS", 3)
    engine = core(pair, speculation=speculation, engine=launcher, max_batch=3)
    assert outputs(engine, jobs) == expected
    assert_pool_is_unheld(engine)
    with pytest.raises(
        UsageError, match="min_tokens knows 3 stop ids at most, this request has 12"
    ):
        engine.submit([1], replace(jobs[0][1], min_tokens=2))


def test_cancelled_requests_leave_at_once(pair: Pair, launcher: str) -> None:
    engine = core(pair, speculation=TREE, max_batch=2, engine=launcher)
    ids = [engine.submit([1, 2], SamplingParams(max_tokens=50, ignore_eos=True)) for _ in range(4)]
    engine.step()
    engine.step()
    for request_id in (ids[0], ids[3]):
        engine.cancel(request_id)
    engine.cancel(12345)
    events = engine.step()
    assert [event.request_id for event in events[:2]] == [ids[0], ids[3]]
    assert engine.request(ids[0]).state is State.FINISHED
    finish_all(engine)
    assert len(engine.request(ids[1]).output) == 50


def test_finished_requests_cost_nothing(pair: Pair, launcher: str) -> None:
    """Rows of a step belong to requests that still decode, and to no others."""
    engine = core(pair, speculation=TREE, engine=launcher)
    for max_tokens in (2, 6, 20, 40):
        engine.submit([1, 2, 3], SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    rows_by_active: dict[int, set[int]] = {}
    while not engine.is_idle:
        active = {r.job.request_id for r in (*engine.running, *engine.waiting)}
        engine.step()
        trees = engine.launcher.trees
        assert trees.keys() <= active
        n_rows = sum(len(tree.nodes) for tree in trees.values())
        rows_by_active.setdefault(len(active), set()).add(n_rows)
        assert int(engine.parts.state.is_live.sum()) <= len(active)
    for n_active, found in rows_by_active.items():
        assert max(found) <= n_active * TREE.nodes
    assert {1, 2} <= rows_by_active.keys()


def test_logprobs_are_the_targets_own(pair: Pair, launcher: str) -> None:
    """Whatever was drafted: of every token, of its alternatives, and of the prompt."""
    params = SamplingParams(
        max_tokens=10, logprobs=3, prompt_logprobs=2, ignore_eos=True, temperature=0.7, seed=3
    )
    runs = []
    for speculation in (PLAIN, TREE):
        engine = core(pair, speculation=speculation, engine=launcher)
        request_id = engine.submit([1, 2, 3], params)
        finish_all(engine)
        runs.append(engine.request(request_id))
    plain, ours = runs
    assert plain.output == ours.output
    assert (len(ours.scored), len(ours.prompt_scored)) == (10, 2)
    assert plain.scored == ours.scored
    assert plain.prompt_scored == ours.prompt_scored
    assert all(len(own.top) == 3 for own in ours.scored)
    expected = log_probabilities(pair, [1, 2, 3, *ours.output])
    for position, own in enumerate((*ours.prompt_scored, *ours.scored), 1):
        token = (1, 2, 3, *ours.output)[position]
        assert own.logprob == pytest.approx(float(expected[position - 1, token]), abs=1e-5)
        best = expected[position - 1].topk(len(own.top))
        assert [token for token, _ in own.top] == best.indices.tolist()
        assert [value for _, value in own.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_a_prompt_can_be_scored_alone(pair: Pair, launcher: str) -> None:
    """No token is asked for: the request ends when its prompt is read, in chunks or whole."""
    prompt = [(7 * index + 3) % LIMITS.vocabulary for index in range(20)]
    expected = log_probabilities(pair, prompt)
    for chunk in (3, 64):
        engine = core(pair, speculation=TREE, engine=launcher, chunk=chunk)
        other = engine.submit([1, 2], SamplingParams(max_tokens=12, ignore_eos=True))
        for _ in range(2):  # the second time its pages could be found: all is computed again
            request_id = engine.submit(prompt, SamplingParams(max_tokens=0, prompt_logprobs=0))
            finish_all(engine)
            request = engine.request(request_id)
            assert request.ended is not None and request.ended.reason == "length"
            assert request.output == []
            found = [own.logprob for own in request.prompt_scored]
            wanted = [float(expected[i, prompt[i + 1]]) for i in range(len(prompt) - 1)]
            assert found == pytest.approx(wanted, abs=1e-5)
        assert len(engine.request(other).output) == 12
        assert_pool_is_unheld(engine)


def test_a_prompt_is_scored_once_though_it_is_read_again(pair: Pair, launcher: str) -> None:
    """A request that gave memory back reads its output too: that is no part of the prompt."""
    params = SamplingParams(max_tokens=30, prompt_logprobs=1, logprobs=1, ignore_eos=True)
    engine = core(pair, speculation=TREE, engine=launcher, n_pages=24)
    ids = [engine.submit([1, 2, 3, 4, 5], params) for _ in range(3)]
    finish_all(engine)
    first, *others = (engine.request(request_id) for request_id in ids)
    assert any(other.statistics.preemptions for other in others)
    for other in others:
        assert other.prompt_scored == first.prompt_scored and len(first.prompt_scored) == 4
        assert other.scored == first.scored


def test_coins_keep_the_distribution(pair_directory: Path, launcher: str) -> None:
    """First two tokens under the rule coins against many plain samples: chi-square, 2 x 800."""
    pair, counts = load_pair(pair_directory, "fast"), []
    for speculation, first_seed in (
        (replace(TREE, rule="coins"), 0),
        (replace(PLAIN, rule="match"), 10_000),
    ):
        engine = core(
            *(pair, "fast"),
            speculation=speculation,
            engine=launcher,
            graphs=replace(BUCKETS, slots=(32,), rows=(32, 320), chunks=(64,)),
            max_batch=32,
            n_pages=4096,
        )
        jobs = [
            ([1, 2, 3], SamplingParams(max_tokens=2, temperature=0.6, seed=seed, ignore_eos=True))
            for seed in range(first_seed, first_seed + 800)
        ]
        counts.append(Counter(tuple(tokens) for tokens in outputs(engine, jobs)))
    frequent = [cell for cell in counts[0] | counts[1] if counts[0][cell] + counts[1][cell] >= 20]
    observed = [[count[cell] for cell in frequent] for count in counts]
    for row, count in zip(observed, counts, strict=True):
        row.append(sum(count.values()) - sum(row))
    statistic = sum(
        (row[i] - (observed[0][i] + observed[1][i]) / 2) ** 2
        / ((observed[0][i] + observed[1][i]) / 2)
        for row in observed
        for i in range(len(row))
        if observed[0][i] + observed[1][i]
    )
    degrees = len(observed[0]) - 1
    # Wilson-Hilferty: far beyond 4.5 sigma for a wrong rule, fixed seeds keep it repeatable.
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    assert degrees >= 5
    assert z < 4.5, f"chi-square {statistic:.1f} on {degrees} degrees of freedom"


def test_coins_refuse_options_they_cannot_honour(pair: Pair) -> None:
    engine = core(pair, speculation=replace(TREE, rule="coins"))
    with pytest.raises(UsageError, match="rule coins takes temperature and seed only"):
        engine.submit([1], SamplingParams(top_p=0.5))


def test_fast_numerics_agree_up_to_near_ties(pair_directory: Path, launcher: str) -> None:
    fast = load_pair(pair_directory, "fast")
    rng = random.Random(2)
    jobs = [
        (
            [rng.randrange(LIMITS.vocabulary) for _ in range(rng.choice([2, 9, 30]))],
            SamplingParams(max_tokens=20, seed=index, temperature=rng.choice([0.0, 0.8])),
        )
        for index in range(6)
    ]
    plain = outputs(core(fast, "fast", speculation=PLAIN), jobs)
    assert outputs(core(fast, "fast", speculation=TREE, engine=launcher), jobs) == plain
