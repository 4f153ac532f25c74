"""A request under way: what is dropped when its client is gone, before and within the answer."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from aerie.completion import Completion
from aerie.requests.params import SamplingParams
from aerie.requests.request import Statistics
from aerie.server.metrics import Metrics
from aerie.server.problems import ApiError, ClientLeft
from aerie.server.running import Run, Stream, unless_left
from aerie.server.samples import Ask, End, Group

SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}, "headers": []}


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def here() -> dict[str, Any]:
    await asyncio.sleep(60)
    return {}


def test_work_ends_with_its_client() -> None:
    cancelled: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def scenario() -> None:
        with pytest.raises(ClientLeft):
            await unless_left(Request(dict(SCOPE), gone), work())
        await asyncio.sleep(0)
        assert cancelled == [True]
        assert await unless_left(Request(dict(SCOPE), here), asyncio.sleep(0, "done")) == "done"

    asyncio.run(scenario())


def test_a_stream_whose_client_left_before_it_began_is_left() -> None:
    """Its generator never starts, so nothing within it can clean up."""
    left: list[bool] = []

    async def chunks() -> AsyncIterator[bytes]:
        yield b"never"

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    run: Any = SimpleNamespace(chunks=chunks, leave=lambda: left.append(True))
    asyncio.run(asyncio.wait_for(Stream(run)(dict(SCOPE), gone, send), 10))
    assert left == [True]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("a sampling parameter is impossible (status BAD_PARAMETER)", 400),
        ("every token of a target row is masked (status ALL_MASKED)", 400),
        ("the grammar stopped: lexer error: too many states", 400),
        ("a target row holds NaN or +inf (status NOT_FINITE)", 500),
    ],
)
def test_a_sample_that_failed_says_whose_fault_it_was(error: str, status: int) -> None:
    left: list[Group] = []
    worker: Any = SimpleNamespace(leave=left.append)
    no_answer: Any = None

    async def scenario() -> None:
        group = Group(0, (Ask((1,), SamplingParams(), 0),))
        group.take(End(0, Completion("", (), "error", 0, Statistics(), error=error)))
        request = Request(dict(SCOPE), here)
        with pytest.raises(ApiError, match="others go on") as refused:
            await Run(worker, Metrics("a-name"), group, no_answer, request).whole()
        assert refused.value.status == status and left == [group]

    asyncio.run(scenario())
