"""An engine elsewhere: what clients hear when it loads, is full, fails, or they leave."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from aerie import Engine, SamplingParams
from aerie.errors import EngineFailedError, UsageError
from aerie.server import engine_loop
from aerie.server.engine_loop import Loaded
from aerie.server.host import ThreadHost
from aerie.server.problems import ApiError
from aerie.server.reloading import until_loaded
from aerie.server.samples import Ask, End, Group, Piece, State
from aerie.server.worker import Worker
from aerie.text.chat import compile_chat_template

Kind = TypeVar("Kind")
PROMPT = (1, 2, 3, 4)
NO_TEMPLATE = compile_chat_template({}, {}, "a test")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(speculation={"top_k": 1, "depth": 3, "nodes": 4})


@asynccontextmanager
async def running(load: Callable[[], Loaded], limit: int = 10_000) -> AsyncIterator[Worker]:
    worker = Worker(ThreadHost(load), limit)
    worker.start()
    while worker.state is State.LOADING:
        await asyncio.sleep(0.01)
    try:
        yield worker
    finally:
        worker.stop()


def ask(n_tokens: int = 12, **options: Any) -> Ask:
    return Ask(PROMPT, SamplingParams(max_tokens=n_tokens, ignore_eos=True, **options), 0)


def counts(worker: Worker) -> tuple[int, int]:
    return worker.numbers.n_running, worker.numbers.n_waiting


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


async def first_of(kind: type[Kind], group: Group) -> Kind:
    """The first item of a kind that a group is told; what comes before it is dropped."""
    while not isinstance(item := await group.items.get(), kind):
        pass
    return item


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


def test_scores_come_in_parts_and_arrive_whole(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_loop, "MOST_SCORED", 3)
    prompt = tuple(range(1, 12))
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    (want,) = engine.generate([prompt], params)

    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            group = await worker.enter([Ask(prompt, params, 0)])
            first = await first_of(Piece, group)
            assert first.prompt_scored == want.prompt_logprobs
            found = (await first_of(End, group)).completion
            assert found.prompt_logprobs == want.prompt_logprobs
            assert found.logprobs == want.logprobs and len(found.logprobs or ()) == 8
            worker.leave(group)

    run(scenario)


def test_an_impossible_sample_takes_its_group_with_it_and_nothing_else(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            other = await worker.enter([ask(30)])
            with pytest.raises(UsageError, match="vocabulary"):
                await worker.enter([ask(), Ask((10**6,), SamplingParams(), 0)])
            item = await first_of(End, other)
            assert len(item.completion.token_ids) == 30
            worker.leave(other)

    run(scenario)
    assert engine.core.is_idle and not engine.open_requests


def test_what_breaks_while_it_is_taken_in_breaks_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            other = await worker.enter([ask(30)])
            with monkeypatch.context() as patched:
                patched.setattr(engine, "submit", _broken)
                with pytest.raises(RuntimeError, match="out of luck"):
                    await worker.enter([ask()])
            assert worker.state is State.READY
            item = await first_of(End, other)
            assert len(item.completion.token_ids) == 30
            worker.leave(other)

    run(scenario)
    assert engine.core.is_idle and not engine.open_requests


def test_what_can_never_fit_is_not_told_to_come_again(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE), limit=5_000) as worker:
            with pytest.raises(ApiError, match="takes in 5000") as refused:
                await worker.enter([ask(3_000), ask(3_000)])
            error = refused.value
            assert (error.status, error.code) == (400, "context_length_exceeded")
            assert "retry-after" not in error.headers and worker.is_quiet

    run(scenario)


def test_who_runs_and_who_waits_is_counted(engine: Engine) -> None:
    most = engine.core.config.scheduler.max_batch

    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE), limit=10**6) as worker:
            group = await worker.enter([ask(300) for _ in range(most + 3)])
            while counts(worker) != (most, 3):
                await asyncio.sleep(0.005)
            worker.leave(group)
            while counts(worker) != (0, 0):
                await asyncio.sleep(0.005)
            assert worker.is_quiet

    run(scenario)


def test_what_still_runs_at_the_end_is_told_so(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            group = await worker.enter([ask(4_000)])
            worker.drain()
            assert not worker.is_quiet
            worker.give_up()
            assert worker.is_quiet and worker.pending_tokens == 0
            item = await first_of(ApiError, group)
            assert "the server ends" in str(item)
            while not engine.core.is_idle:
                await asyncio.sleep(0.005)

    run(scenario)


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
            item = await first_of(ApiError, group)
            assert item.status == 503
            assert worker.state is State.FAILED and "out of luck" in worker.failure
            worker.leave(group)
            with pytest.raises(ApiError) as late:
                await worker.enter([ask()])
            assert late.value.status == 503 and "luck" not in str(late.value)

    run(scenario)


def test_an_engine_that_says_it_failed_is_believed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            group = await worker.enter([ask(4_000)])
            monkeypatch.setattr(engine.core, "failure", "no memory left")
            item = await first_of(ApiError, group)
            assert item.status == 503
            assert worker.state is State.FAILED and "no memory left" in worker.failure
            worker.leave(group)

    run(scenario)
    monkeypatch.undo()
    engine.abandon_all()


def test_an_engine_that_fails_while_it_takes_in_tells_who_asked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: object) -> int:
        raise EngineFailedError("no memory left")

    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            monkeypatch.setattr(engine, "submit", failed)
            with pytest.raises(ApiError) as told:
                await worker.enter([ask()])
            assert told.value.status == 503
            while worker.state is not State.FAILED:
                await asyncio.sleep(0.005)
            assert worker.is_quiet and worker.failure == "no memory left"

    run(scenario)


def test_a_failed_load_is_said_and_ends() -> None:
    async def scenario() -> None:
        async with running(_broken) as worker:
            assert worker.state is State.FAILED
            with pytest.raises(ApiError) as refused:
                worker.ready()
            assert refused.value.status == 503

    run(scenario)


def test_another_engine_takes_over_and_the_old_one_finishes_what_it_has(engine: Engine) -> None:
    other = Engine.load(speculation={"method": "none"})
    greedy = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    (want,) = engine.generate([PROMPT], greedy)

    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            old = await worker.enter([Ask(PROMPT, greedy, 0)])
            await take_over(worker, other)
            assert worker.n_retiring == 1
            new = await worker.enter([ask(20)])
            completion = (await first_of(End, new)).completion
            assert len(completion.token_ids) == 20 and completion.statistics.num_drafts == 0
            worker.leave(new)
            found = (await first_of(End, old)).completion
            assert found.token_ids == want.token_ids and found.statistics.num_drafts > 0
            worker.leave(old)
            assert worker.is_quiet and worker.n_retiring == 0
            await until_one_runs()
            assert worker.state is State.READY and worker.pending_tokens == 0
            # And back, with nothing to finish: the engine is ended at once.
            await take_over(worker, engine)
            await until_one_runs()

    run(scenario)
    assert engine.core.is_idle and other.core.is_idle


def test_a_retired_engine_that_fails_takes_only_its_own_with_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Engine.load(speculation={"method": "none"})

    async def scenario() -> None:
        async with running(lambda: Loaded(dying, NO_TEMPLATE)) as worker:
            old = await worker.enter([ask(4_000)])
            await take_over(worker, engine)
            new = await worker.enter([ask(20)])
            monkeypatch.setattr(dying, "step", _broken)
            lost = await first_of(ApiError, old)
            assert lost.status == 503
            worker.leave(old)
            assert len((await first_of(End, new)).completion.token_ids) == 20
            worker.leave(new)
            assert worker.state is State.READY
            await until_one_runs()

    run(scenario)


async def until_one_runs() -> None:
    """A retired engine ends by itself."""
    async with asyncio.timeout(20):
        while sum(thread.name == "engine" for thread in threading.enumerate()) > 1:
            await asyncio.sleep(0.01)


async def take_over(worker: Worker, engine: Engine) -> None:
    """As a reload does."""
    host = ThreadHost(lambda: Loaded(engine, NO_TEMPLATE))
    worker.adopt(host, *await asyncio.to_thread(until_loaded, host))


def test_an_engine_that_does_not_load_says_why() -> None:
    with pytest.raises(ApiError, match="stay as they are: RuntimeError: out of luck"):
        until_loaded(ThreadHost(_broken))


def test_an_engine_that_is_given_up_while_it_loads_is_not_waited_for() -> None:
    release = threading.Event()

    def load() -> Any:
        release.wait()

    host = ThreadHost(load)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(until_loaded, host)
        host.end(0)
        with pytest.raises(ApiError, match="stay as they are: the engine's thread ended"):
            waiting.result(10)
    release.set()


def test_draining_takes_in_nothing_new(engine: Engine) -> None:
    async def scenario() -> None:
        async with running(lambda: Loaded(engine, NO_TEMPLATE)) as worker:
            group = await worker.enter([ask(20)])
            worker.drain()
            with pytest.raises(ApiError, match="draining"):
                await worker.enter([ask()])
            item = await first_of(End, group)
            assert len(item.completion.token_ids) == 20

    run(scenario)


def _broken(*_: object) -> Any:
    raise RuntimeError("out of luck")
