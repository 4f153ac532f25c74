"""The guard alone: bodies in pieces, clients that do not read."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from aerie.server.guard import Guard
from aerie.server.settings import ServerSettings

SCOPE = {"type": "http", "path": "/x", "headers": [(b"host", b"localhost:8000")]}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of the body it got."""
    message = await receive()
    size = str(len(message["body"])).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": size})


def answer(settings: ServerSettings, pieces: Iterable[bytes], headers: Any = ()) -> list[Any]:
    sent: list[Any] = []
    waiting = list(pieces)

    async def receive() -> dict[str, Any]:
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {**SCOPE, "headers": [*SCOPE["headers"], *headers]}  # type: ignore[misc]
    asyncio.run(Guard(echo, settings)(scope, receive, send))
    return sent


@pytest.mark.parametrize(("n_bytes", "status"), [(0, 200), (10, 200), (11, 413), (200, 413)])
def test_a_body_is_counted_as_it_comes(n_bytes: int, status: int) -> None:
    pieces = [b"a"] * n_bytes or [b""]
    start, body = answer(ServerSettings(max_body=10), pieces)
    assert start["status"] == status
    assert status != 200 or body["body"] == str(n_bytes).encode()


def test_a_declared_size_is_believed_at_once() -> None:
    start, _ = answer(ServerSettings(max_body=10), [b"a"], [(b"content-length", b"11")])
    assert start["status"] == 413


@pytest.mark.parametrize("host", [b"", b"elsewhere", b"localhost.elsewhere", b"[::2]:80"])
def test_other_names_are_refused(host: bytes) -> None:
    start, _ = answer(ServerSettings(), [b""], [(b"host", host)])
    assert start["status"] == 400


@pytest.mark.parametrize("host", [b"LOCALHOST", b"127.0.0.1:1", b"[::1]:8000"])
def test_own_names_pass(host: bytes) -> None:
    start, _ = answer(ServerSettings(), [b""], [(b"host", host)])
    assert start["status"] == 200


def test_who_does_not_read_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[str] = []

    async def never(message: Any) -> None:
        tried.append(message["type"])
        await asyncio.sleep(3600)

    guard = Guard(echo, ServerSettings(request_seconds=0.05))
    asyncio.run(asyncio.wait_for(guard(dict(SCOPE), nothing, never), 10))
    assert tried == ["http.response.start"], "the rest of the answer is given up"
    assert "does not read" in caplog.text


def test_another_timeout_is_not_taken_for_a_stalled_client() -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        asyncio.run(Guard(late, ServerSettings())(dict(SCOPE), nothing, nothing))


async def nothing(*_: Any) -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}
