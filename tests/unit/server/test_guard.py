"""The guard alone: hosts and keys, bodies in pieces, clients that do not read."""

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from aerie.server import guard as guard_module
from aerie.server.guard import LARGE_BODY, Guard
from aerie.server.settings import ServerSettings

OWN_HOST = [(b"host", b"localhost:8000")]
SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/x", "headers": OWN_HOST}
KEY = "a-long-secret"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of the body it got."""
    message = await receive()
    size = str(len(message["body"])).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": size})


def answer(
    settings: ServerSettings, pieces: Iterable[bytes], headers: Any = (), **scope: Any
) -> list[Any]:
    sent: list[Any] = []
    waiting = list(pieces)

    async def receive() -> dict[str, Any]:
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    own = {**SCOPE, **scope}
    own["headers"] = [*own["headers"], *headers]
    asyncio.run(Guard(echo, settings)(own, receive, send))
    return sent


@pytest.mark.parametrize(("n_bytes", "status"), [(0, 200), (10, 200), (11, 413), (200, 413)])
def test_a_body_is_counted_as_it_comes(n_bytes: int, status: int) -> None:
    pieces = [b"a"] * n_bytes or [b""]
    start, *bodies = answer(ServerSettings(max_body=10), pieces)
    assert start["status"] == status
    assert status != 200 or bodies[0]["body"] == str(n_bytes).encode()


def test_a_declared_size_is_believed_at_once_and_ends_the_connection() -> None:
    start, said, end = answer(ServerSettings(max_body=10), [b"a"], [(b"content-length", b"11")])
    assert start["status"] == 413 and (b"connection", b"close") in start["headers"]
    assert b"more than 10 bytes" in said["body"] and said["more_body"]
    assert not end["more_body"]


@pytest.mark.parametrize("is_endless", [True, False])
def test_a_refused_body_is_not_swallowed(monkeypatch: pytest.MonkeyPatch, is_endless: bool) -> None:
    """Neither one that never stops coming, nor one of which nothing more comes."""
    monkeypatch.setattr(guard_module, "LINGER_SECONDS", 0.1)
    monkeypatch.setattr(guard_module, "LINGER_BYTES", 10_000)
    n_taken, sent = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal n_taken
        await asyncio.sleep(0 if is_endless else 60)
        n_taken += 1000
        return {"type": "http.request", "body": b"a" * 1000, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {**SCOPE, "headers": [*OWN_HOST, (b"content-length", b"999999999")]}
    guard = Guard(echo, ServerSettings(max_body=10_000))
    asyncio.run(asyncio.wait_for(guard(scope, receive, send), 10))
    assert sent[0]["status"] == 413 and not sent[-1]["more_body"]
    assert n_taken <= 10_000


def test_who_leaves_within_the_body_is_not_served() -> None:
    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def never(*_: Any) -> None:
        raise AssertionError("nobody is there")

    asyncio.run(Guard(never, ServerSettings())(dict(SCOPE), left, never))


def status_for(hosts: list[bytes], settings: ServerSettings | None = None) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {**SCOPE, "headers": [(b"host", host) for host in hosts]}
    asyncio.run(Guard(echo, settings or ServerSettings())(scope, nothing, send))
    return int(sent[0]["status"])


HOSTS = {
    b"LOCALHOST": 200,
    b"127.0.0.1:1": 200,
    b"[::1]:8000": 200,
    b"[::2]:80": 200,  # an address cannot be made to mean another machine
    b"0.0.0.0": 200,
    b"elsewhere": 400,
    b"localhost.elsewhere": 400,
    b"localhost:80@evil": 400,
    b"evil@localhost": 400,
    b"localhost:": 400,
    b"localhost:x": 400,
    b"[::1]evil": 400,
    b"[localhost]": 400,
    b" ": 400,
    b"localhost, evil": 400,
    b"\xff": 400,
}


@pytest.mark.parametrize("host", HOSTS)
def test_only_own_names_and_addresses_pass(host: bytes) -> None:
    assert status_for([host]) == HOSTS[host]


def test_a_request_has_one_host() -> None:
    for hosts in ([], [b"localhost"] * 2, [b"evil", b"localhost"]):
        assert status_for(hosts) == 400


def test_a_star_is_any_name_that_is_one() -> None:
    anybody = ServerSettings(allowed_hosts=("*",))
    for host, status in ((b"elsewhere:80", 200), (b"a b", 400), (b"x@y", 400)):
        assert status_for([host], anybody) == status


@pytest.mark.parametrize("path", ["/health", "/", "/view.js", "/view.css", "/icon.svg"])
def test_the_page_and_health_need_no_key_and_nothing_else_goes_without(path: str) -> None:
    guarded = ServerSettings(api_key=KEY)
    assert answer(guarded, [b""], path=path, method="GET")[0]["status"] == 200
    assert answer(guarded, [b""], path=path, method="POST")[0]["status"] == 401
    for other in ("/v1/models", "/metrics", path + "x", f"/..{path}"):
        assert answer(guarded, [b""], path=other, method="GET")[0]["status"] == 401
    key = [(b"authorization", f"Bearer {KEY}".encode())]
    assert answer(guarded, [b""], key, path="/metrics", method="GET")[0]["status"] == 200


def test_large_bodies_leave_room_for_everybody_else() -> None:
    """Each is parsed without a break; between two of them others are served."""
    order, is_over = [], asyncio.Event()

    async def parse(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        order.append("large")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"a" * (LARGE_BODY + 1), "more_body": False}

    async def others() -> None:
        while not is_over.is_set():
            order.append("other")
            await asyncio.sleep(0)

    async def scenario() -> None:
        guard = Guard(parse, ServerSettings())
        serving = asyncio.create_task(others())
        await asyncio.gather(*(guard(dict(SCOPE), receive, nothing) for _ in range(6)))
        is_over.set()
        await serving

    asyncio.run(scenario())
    assert order.count("large") == 6
    assert ("large", "large") not in itertools.pairwise(order)


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


def test_an_answer_that_is_an_error_is_counted() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        raise RuntimeError("told to the log already")

    counted: list[int] = []
    asyncio.run(Guard(fails, ServerSettings(), counted.append)(dict(SCOPE), nothing, nothing))
    asyncio.run(Guard(echo, ServerSettings(), counted.append)(dict(SCOPE), nothing, nothing))
    keyed = Guard(echo, ServerSettings(api_key=KEY), counted.append)
    asyncio.run(keyed(dict(SCOPE), nothing, nothing))
    assert counted == [500, 401]


def test_a_request_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "aerie.server"):
        answer(ServerSettings(), [b"abc"], path="/v1/x\n2026 forged", client=("localhost", 5))
        answer(ServerSettings(max_body=1), [b"abc"])
        answer(ServerSettings(), [b""], path="/health", method="GET")
    first, second = (record.getMessage() for record in caplog.records)
    assert ": 200, localhost POST /v1/x\\n2026 forged, " in first and " ms" in first
    assert ": 413, " in second and "more than 1 bytes" in second


async def nothing(*_: Any) -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}
