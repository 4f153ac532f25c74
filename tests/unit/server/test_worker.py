"""The engine's thread: what clients hear when it loads, is full, fails, or they leave."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aerie import Engine, SamplingParams
from aerie.errors import UsageError
from aerie.server.problems import ApiError
from aerie.server.worker import Ask, End, Loaded, Piece, State, Worker
from aerie.text.chat import compile_chat_template

PROMPT = (1, 2, 3, 4)
NO_TEMPLATE = compile_chat_template({}, {}, "a test")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(speculation={"top_k": 1, "depth": 3, "nodes": 4})


@asynccontextmanager
async def running(load: Callable[[], Loaded], limit: int = 10_000) -> AsyncIterator[Worker]:
    worker = Worker(load, limit)
    worker.start()
    while worker.state is State.LOADING:
        await asyncio.sleep(0.01)
    try:
        yield worker
    finally:
        worker.stop()


def ask(n_tokens: int = 12, **options: Any) -> Ask:
    return Ask(PROMPT, SamplingParams(max_tokens=n_tokens, ignore_eos=True, **options), 0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_pieces_join_to_the_completion(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            group = await worker.enter([ask(), ask(20)])
            texts, ended = ["", ""], {}
            while len(ended) < 2:
                item = await group.items.get()
                if isinstance(item, Piece):
                    texts[item.index] += item.text
                elif isinstance(item, End):
                    ended[item.index] = item.completion
            worker.leave(group)
            assert [ended[index].text for index in (0, 1)] == texts
            assert [len(ended[index].token_ids) for index in (0, 1)] == [12, 20]
            assert worker.pending_tokens == 0

    run(scenario)
    assert engine.core.is_idle


def test_an_impossible_sample_takes_its_group_with_it_and_nothing_else(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            other = await worker.enter([ask(30)])
            with pytest.raises(UsageError, match="vocabulary"):
                await worker.enter([ask(), Ask((10**6,), SamplingParams(), 0)])
            while not isinstance(item := await other.items.get(), End):
                pass
            assert len(item.completion.token_ids) == 30
            worker.leave(other)

    run(scenario)
    assert engine.core.is_idle and not engine.open_requests


def test_who_leaves_frees_the_queue(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE), limit=5_000) as worker:
            group = await worker.enter([ask(4_000)])
            with pytest.raises(ApiError, match="pending") as full:
                await worker.enter([ask(1_000)])
            assert full.value.status == 429
            worker.leave(group)
            worker.leave(group)
            assert worker.pending_tokens == 0
            again = await worker.enter([ask(4)])
            worker.leave(again)
            while not engine.core.is_idle:
                await asyncio.sleep(0.01)

    run(scenario)
    assert not engine.open_requests


def test_a_failed_engine_is_said_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Engine.load(speculation={"method": "none"})

    async def scenario() -> None:
        async with running(lambda: Loaded(own, NO_TEMPLATE)) as worker:
            group = await worker.enter([ask(4_000)])
            monkeypatch.setattr(own, "step", _broken)
            while not isinstance(item := await group.items.get(), Exception):
                pass
            assert isinstance(item, ApiError) and item.status == 503
            assert worker.state is State.FAILED and "out of luck" in worker.failure
            worker.leave(group)
            with pytest.raises(ApiError) as late:
                await worker.enter([ask()])
            assert late.value.status == 503 and "luck" not in str(late.value)

    run(scenario)


def test_a_failed_load_is_said_and_ends() -> None:
    async def scenario() -> None:
        async with running(_broken) as worker:
            assert worker.state is State.FAILED
            with pytest.raises(ApiError) as refused:
                worker.ready()
            assert refused.value.status == 503

    run(scenario)


def test_draining_takes_in_nothing_new(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            group = await worker.enter([ask(20)])
            worker.drain()
            with pytest.raises(ApiError, match="draining"):
                await worker.enter([ask()])
            while not isinstance(item := await group.items.get(), End):
                pass
            assert len(item.completion.token_ids) == 20

    run(scenario)


def _broken() -> Any:
    raise RuntimeError("out of luck")
