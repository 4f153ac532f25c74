"""One bad call harms no other: whatever a caller does, the engine is then as it was before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import aerie
from aerie.api import Completion, Engine
from aerie.config import SpeculationConfig
from aerie.errors import AerieError, EngineFailedError, RequestFailedError, UsageError
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import Pair, core, load_pair, write_pair
from tests.unit.text.vocabularies import tokenizer

PACKAGE = str(Path(aerie.__file__).parent)
TREE = SpeculationConfig(top_k=2, depth=3, nodes=6)
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
KNOWN = [1, 2, 3]  # a prompt whose completion every engine here must agree on


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(write_pair(tmp_path_factory.mktemp("pair")), "exact")


def make_engine(pair: Pair, **settings: Any) -> Engine:
    """A whole engine over the tiny pair, whose 61 ids are tokens of a larger vocabulary."""
    built = core(pair, **{"speculation": TREE, **settings})
    return Engine(built, tokenizer("byte_level"), built.config)


@pytest.fixture(scope="module")
def engine(pair: Pair) -> Engine:
    return make_engine(pair)


@pytest.fixture(scope="module")
def expected(pair: Pair) -> Completion:
    return make_engine(pair).generate([KNOWN], GREEDY)[0]


def assert_as_new(engine: Engine, expected: Completion) -> None:
    """Nothing runs, waits or is remembered; every page is free or kept; the tokens are right."""
    built, ledger = engine.core, engine.core.memory.ledger
    assert (built.running, built.waiting, built._requests) == ([], [], {})
    assert engine.open_requests == []
    assert ledger.n_free + ledger.n_idle == ledger.n_pages - 1
    found = engine.generate([KNOWN], GREEDY)[0]
    assert (found.token_ids, found.text) == (expected.token_ids, expected.text)


WRONG_PARAMS: tuple[dict[str, Any], ...] = (
    {"seed": 1 << 63},
    {"seed": "x"},
    {"seed": 1.5},
    {"logit_bias": {5: 1e39}},
    {"logit_bias": {5: -1e39}},
    {"logit_bias": {5.5: 1.0}},
    {"logit_bias": [1.0]},
    {"max_tokens": 2.5},
    {"max_tokens": True},
    {"top_k": 2.5},
    {"n": 2.0},
    {"top_p": 1e-300},
    {"repetition_penalty": 1e-300},
    {"temperature": "0"},
    {"stop": 5},
    {"stop": b"END"},
    {"stop": ["a", 5]},
    {"stop_token_ids": (2.5,)},
    {"stop_token_ids": 5},
    {"ignore_eos": 1},
)
WRONG_STOPS = (("\ud800",), ("x" * 257,), tuple(f"s{i}" for i in range(65)))
WRONG_PROMPTS: tuple[Any, ...] = (
    None,
    5.0,
    {},
    b"def",
    bytearray(b"def"),
    "",
    [[]],
    [True, False],
    np.array([True]),
    [1.0, 2.0],
    [1, None],
    ["a", None],
    ["a", 5],
    [[1, 2], [3, 99]],
    torch.tensor([0.5]),
    np.zeros((2, 2, 2), int),
    "\ud800",
)


@pytest.mark.parametrize("wrong", WRONG_PARAMS, ids=str)
def test_wrong_options_are_refused_when_they_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_options_are_taken_as_people_write_them() -> None:
    made = SamplingParams(
        max_tokens=np.int64(5),
        temperature=np.float32(0.7),
        top_k=torch.tensor(3),
        stop="END",
        stop_token_ids={7, 3},
        logit_bias=None,
        top_p=None,
        seed=np.uint8(9),
        ignore_eos=np.bool_(True),
    )
    assert made.stop == ("END",) and sorted(made.stop_token_ids) == [3, 7]
    assert (made.max_tokens, made.top_k, made.top_p, made.seed) == (5, 3, 1.0, 9)
    assert made.temperature == float(np.float32(0.7)) and made.logit_bias == {}
    assert SamplingParams(temperature=1e-300).temperature == 0.0


def test_refused_calls_leave_nothing(engine: Engine, expected: Completion) -> None:
    for stop in WRONG_STOPS:
        with pytest.raises(UsageError):
            engine.generate([KNOWN], SamplingParams(stop=stop))
    for prompt in WRONG_PROMPTS:
        with pytest.raises(UsageError):
            engine.generate(prompt, GREEDY)
    for call in (
        lambda: engine.generate([KNOWN], {"max_tokens": 5}),
        lambda: engine.submit(KNOWN, {"n": 1}),
        lambda: engine.collect(12345),
        lambda: next(engine.stream([KNOWN, KNOWN], GREEDY)),
    ):
        with pytest.raises(UsageError):
            call()
    engine.abandon(12345)
    engine.cancel(12345)
    assert_as_new(engine, expected)


def test_prompts_are_taken_as_people_write_them(engine: Engine, expected: Completion) -> None:
    forms: tuple[tuple[Any, int], ...] = (
        (KNOWN, 1),
        (tuple(KNOWN), 1),
        (np.array(KNOWN), 1),
        (torch.tensor(KNOWN), 1),
        ([np.int64(token) for token in KNOWN], 1),
        ([KNOWN, np.array(KNOWN), torch.tensor(KNOWN)], 3),
        (torch.tensor([KNOWN, KNOWN]), 2),
        ((prompt for prompt in (KNOWN, KNOWN)), 2),
        ([], 0),
    )
    for prompts, count in forms:
        found = engine.generate(prompts, GREEDY)
        assert [one.token_ids for one in found] == [expected.token_ids] * count


def test_collecting_too_early_changes_nothing(engine: Engine, expected: Completion) -> None:
    request_id = engine.submit(KNOWN, GREEDY)
    with pytest.raises(UsageError, match="has not ended"):
        engine.collect(request_id)
    while not engine.core.is_idle:
        engine.step()
    assert engine.collect(request_id).token_ids == expected.token_ids
    assert_as_new(engine, expected)


def test_a_padded_vocabulary_decodes_to_nothing(pair: Pair) -> None:
    """Ids that only the embedding has, as Qwen's: a request that emits one goes on, and alone."""
    small = tokenizer("byte_level")
    cut = replace(small, unused_ids=frozenset({*small.unused_ids, 60}))
    built = core(pair, speculation=TREE)
    engine = Engine(built, cut, built.config)
    forced = SamplingParams(max_tokens=4, logit_bias={60: 100.0}, ignore_eos=True)
    for params, ids in ((forced, (60,) * 4), (GREEDY, None)):
        found = engine.generate([KNOWN], params)[0]
        assert (found.text == "", found.token_ids) == (ids is not None, ids or found.token_ids)


def test_a_failing_text_ends_its_own_request_alone(
    pair: Pair, expected: Completion, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(pair)
    bad, good = engine.submit([4, 5], GREEDY), engine.submit(KNOWN, GREEDY)

    def broken(ids: Any) -> Any:
        raise ValueError("no such text")

    monkeypatch.setattr(engine._texts.by_id[bad].output, "push", broken)
    while not engine.core.is_idle:
        engine.step()
    failed = engine.collect(bad)
    assert (failed.finish_reason, failed.error) == ("error", "ValueError: no such text")
    assert engine.collect(good).text == expected.text
    assert_as_new(engine, expected)


def test_a_failed_completion_cannot_be_taken_for_a_good_one(
    engine: Engine, expected: Completion
) -> None:
    nothing = SamplingParams(max_tokens=4, logit_bias={t: -float("inf") for t in range(61)})
    with pytest.raises(RequestFailedError, match="1 of 1 requests failed") as caught:
        engine.generate([KNOWN], nothing)
    (failed,) = caught.value.completions
    assert isinstance(failed, Completion) and failed.error
    with pytest.raises(RequestFailedError):
        list(engine.stream(KNOWN, nothing))
    assert_as_new(engine, expected)


def test_what_belongs_to_no_request_ends_the_engine(pair: Pair, expected: Completion) -> None:
    """A device error in the middle of a step: every request is told, and nothing is tried again."""
    engine = make_engine(pair)
    ids = [engine.submit(prompt, GREEDY) for prompt in (KNOWN, [4, 5])]
    engine.step()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    kernels = engine.core.parts.kernels
    object.__setattr__(engine.core.parts, "kernels", {**kernels, "update_node_data": broken})
    last = {update.request_id: update for update in engine.step()}
    assert {update.finish_reason for update in last.values()} == {"error"}
    assert set(last) == set(ids) and all("illegal memory" in str(u.error) for u in last.values())
    assert engine.failure is not None and "illegal memory" in engine.failure
    assert "illegal memory" in str(engine.collect(ids[0]).error)
    for call in (engine.step, lambda: engine.generate([KNOWN], GREEDY)):
        with pytest.raises(EngineFailedError, match="illegal memory access"):
            call()
    engine.close()


def test_a_closed_engine_says_so(pair: Pair) -> None:
    with make_engine(pair) as engine:
        engine.submit(KNOWN, GREEDY)
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.generate([KNOWN], GREEDY)


def test_abandoned_requests_are_gone_at_once(engine: Engine, expected: Completion) -> None:
    for _ in range(3):
        engine.submit(KNOWN, GREEDY)
    engine.step()
    engine.abandon_all()
    assert_as_new(engine, expected)


def test_threads_share_the_batch(pair: Pair) -> None:
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=3, ignore_eos=True)
    alone = make_engine(pair)
    wanted = [alone.generate([prompt], params)[0] for prompt in prompts]
    engine = make_engine(pair)
    found: dict[int, Any] = {}
    most = 0

    def work(index: int) -> None:
        nonlocal most
        try:
            if index % 2:
                updates = list(engine.stream(prompts[index], params))
                found[index] = ("".join(u.text for u in updates), updates[-1].finish_reason)
            else:
                one = engine.generate([prompts[index]], params)[0]
                found[index] = (one.text, one.finish_reason)
        except AerieError as error:
            found[index] = error
        most = max(most, len(engine.core.running))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: (one.text, one.finish_reason) for i, one in enumerate(wanted)}
    assert engine.core._requests == {} and engine.open_requests == []


@contextmanager
def interrupted_at(line: int) -> Iterator[Callable[[], int]]:
    """Raise KeyboardInterrupt at the n-th line of aerie that runs; tells how many there were."""
    met = 0

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal met
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            met += 1
            if met == line:
                raise KeyboardInterrupt
        return watch

    sys.settrace(watch)
    try:
        yield lambda: met
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("engine_kind", ["direct", "graphs"])
@pytest.mark.parametrize("n_points", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_an_interruption_anywhere_is_survived(pair: Pair, engine_kind: str, n_points: int) -> None:
    """Ctrl-C at any line of a step: the call's requests are gone, all others go on.

    Bystanders have stop strings, penalties, logprobs and samples, and share the batch.
    """
    bystanders = (
        SamplingParams(max_tokens=9, ignore_eos=True),
        SamplingParams(max_tokens=8, temperature=0.9, seed=5, presence_penalty=0.5, logprobs=True),
    )

    def play(line: int) -> tuple[list[Completion], int]:
        engine = make_engine(pair, engine=engine_kind, chunk=4)
        ids = [engine.submit([7, 8, 9, 10, 11, 12], params) for params in bystanders]
        try:
            with interrupted_at(line) as count:
                engine.generate([KNOWN, [4, 5]], SamplingParams(max_tokens=6, stop="zz"))
        except KeyboardInterrupt:
            assert set(engine.core._requests) == set(ids) == set(engine.open_requests)
        while not all(engine._texts.by_id[i].is_over for i in ids):
            engine.step()
        assert not engine.core.running and not engine.core.waiting
        return [engine.collect(request_id) for request_id in ids], count()

    wanted, n_lines = play(0)
    assert n_lines > 1000
    for line in range(1, n_lines, n_lines // n_points):
        found, _ = play(line)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.token_ids == theirs.token_ids, f"interrupted at line {line}"
            assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
            assert ours.logprobs == theirs.logprobs
