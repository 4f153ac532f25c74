"""What the host does in a step: no more for long texts, long queues and much that has ended."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aerie import Engine, SamplingParams
from aerie.config.values import read_number
from aerie.engine import engine as engine_module
from aerie.requests import params as params_module
from aerie.requests.admission import Limits, check_request
from aerie.requests.request import Request
from aerie.server.engine_loop import EngineLoop, Loaded
from aerie.server.fields import CompletionRequest
from aerie.server.samples import Ask, Batch, Submit
from aerie.server.service import _asks
from aerie.text.chat import compile_chat_template

NO_TEMPLATE = compile_chat_template({}, {}, "a test")
LONG = SamplingParams(max_tokens=4000, ignore_eos=True, temperature=0.8, seed=1)


class Counted(list[Any]):
    """A list that counts the entries it was asked for, one by one or in slices."""

    n_read = 0

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        self.n_read += len(found) if isinstance(where, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        self.n_read += len(self)
        return super().__iter__()


class Queue(deque[Request]):
    """A queue that counts how often it was looked through."""

    n_scans = 0

    def __contains__(self, request: object) -> bool:
        self.n_scans += 1
        return super().__contains__(request)

    def __iter__(self) -> Iterator[Request]:
        self.n_scans += 1
        return super().__iter__()


class Told:
    """A line that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Batch] = []

    def send(self, message: Batch) -> None:
        self.sent.append(message)

    def receive(self) -> list[Any]:
        return []


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(
        speculation={"policy": "fixed", "top_k": 1, "depth": 3, "nodes": 4},
        scheduler={"max_batch": 2},
        cache={"n_pages": 600},
    )


@pytest.fixture
def loop(engine: Engine) -> Iterator[EngineLoop]:
    line: Any = Told()
    yield EngineLoop(Loaded(engine, NO_TEMPLATE), line)
    engine.abandon_all()


def begin(loop: EngineLoop, key: int, n_output: int = 0) -> Request:
    """A request in the engine, as if it had so much output; its KV was never computed."""
    engine = loop._engine
    loop._submit(Submit(key, (Ask([5, 6, 7, 8], LONG, 0),), False))
    request_id = engine.core.next_id - 1
    request, text = engine.core.request(request_id), engine._texts.by_id[request_id]
    request.tokens = Counted([*request.tokens, *(9 + i % 50 for i in range(n_output))])
    request.n_told = text.n_tokens = n_output
    return request


def n_read_in_steps(loop: EngineLoop, n_output: int) -> int:
    """Tokens of a text that three steps looked at, when it was seated."""
    request = begin(loop, n_output, n_output)
    loop._engine.core.assume_read()
    loop._step()
    assert isinstance(request.tokens, Counted)
    before, n_before = request.tokens.n_read, len(request.tokens)
    for _ in range(3):
        loop._step()
    assert len(request.tokens) > n_before
    found = request.tokens.n_read - before
    loop._abandon(n_output)
    return found


def test_a_step_looks_at_new_tokens_alone(loop: EngineLoop) -> None:
    """Each of at most twelve tokens: for its event, its text, the index of prefixes."""
    assert max(n_read_in_steps(loop, n) for n in (10, 1500)) < 100


def test_a_step_does_not_look_through_those_that_wait(loop: EngineLoop) -> None:
    scheduler = loop._engine.core._scheduler
    waiting = [begin(loop, key) for key in range(40)]
    loop._step()
    queue = scheduler.waiting = Queue(scheduler.waiting)
    n_asked = 0

    def is_waiting(seat: Any) -> bool:
        nonlocal n_asked
        n_asked += 1
        return original(seat)

    kind: Any = type(next(iter(loop._seats.values())))
    original = kind.is_waiting.fget
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "is_waiting", property(is_waiting))
        for _ in range(3):
            loop._step()
        assert n_asked <= 3
        loop._engine.cancel(waiting[0].job.request_id)
        loop._step()
    assert queue.n_scans == 0, "a request that runs is looked for among those that wait"
    numbers = loop._numbers
    assert (numbers.n_running, numbers.n_waiting) == (2, 37)
    started = [seat.started is not None for seat in loop._seats.values()]
    assert started == [True] * 2 + [False] * 37
    loop._abandon(20)  # from the middle
    assert len(loop._queue) == 36
    for key in range(40):
        loop._abandon(key)
    assert not scheduler.waiting and not loop._queue


def test_a_call_does_not_ask_again_what_has_ended(engine: Engine) -> None:
    class Texts(dict[int, Any]):
        n_asked = 0

        def __getitem__(self, request_id: int) -> Any:
            self.n_asked += 1
            return super().__getitem__(request_id)

    n_steps, step = 0, engine.step

    def counted() -> Any:
        nonlocal n_steps
        n_steps += 1
        return step()

    texts = engine._texts.by_id = Texts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "step", counted)
        engine.generate([[5, 6 + i] for i in range(30)], SamplingParams(max_tokens=2))
    engine._texts.by_id = {}
    assert texts.n_asked <= n_steps + 30


def test_a_text_that_waits_for_memory_is_looked_up_once(loop: EngineLoop) -> None:
    core = loop._engine.core
    core.memory.forget()
    free = core.memory.ledger.take(core.memory.ledger.n_free - 40)
    assert free is not None
    running = begin(loop, 1)
    waits = begin(loop, 2, 1200)
    loop._step()
    assert (running.state.value, waits.state.value) == ("decoding", "waiting")
    assert isinstance(waits.tokens, Counted)
    before = waits.tokens.n_read
    for _ in range(5):
        loop._step()
    assert waits.tokens.n_read == before
    core.memory.ledger.give(free)
    loop._step()
    assert waits.state.value == "reading"


def test_samples_of_a_prompt_are_checked_once(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_checked = 0

    def counted(*given: Any) -> Any:
        nonlocal n_checked
        n_checked += 1
        return check_request(*given)

    monkeypatch.setattr(engine_module, "check_request", counted)
    engine, drawn = loop._engine, SamplingParams(max_tokens=2, n=6, temperature=1.0)
    found = engine.generate([[5, 6], [5, 6, 7]], drawn)
    assert n_checked == 2
    assert len({completion.seed for completion in found}) == 12, "each sample draws its own"
    # What comes over the line has one prompt and one set of parameters for all samples.
    prompt = (5, 6, 7)
    asks = tuple(Ask(prompt, LONG, index) for index in range(5))
    loop._submit(Submit(1, pickle.loads(pickle.dumps(asks)), False))
    assert n_checked == 3
    jobs = [seat.request.job for seat in loop._seats.values()]
    assert [(job.prompt, job.seed, job.sample_index) for job in jobs] == [
        (prompt, 1, index) for index in range(5)
    ]


def test_parameters_of_many_prompts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    n_read = 0

    def counted(name: str, value: Any) -> float:
        nonlocal n_read
        n_read += "logit_bias" in name
        return read_number(name, value)

    monkeypatch.setattr(params_module, "read_number", counted)
    bias = {str(token): 1.5 for token in range(100)}
    asked = CompletionRequest.model_validate({"prompt": [[5, 6]] * 20, "logit_bias": bias})
    facts: Any = SimpleNamespace(limits=Limits(50, 4096, (0,)), n_slots=1000)
    asks = _asks(facts, asked, [[5] * n for n in range(1, 21)], 40)
    assert n_read == 100
    assert [ask.params.max_tokens for ask in asks] == [40] * 10 + list(range(39, 29, -1))
    assert all(ask.params.logit_bias == dict.fromkeys(range(100), 1.5) for ask in asks)
