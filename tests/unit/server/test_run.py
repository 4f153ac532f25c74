"""A whole server in a thread: what watchers are told while it loads, drains and fails."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from aerie import Engine, SamplingParams
from aerie.errors import AerieError
from aerie.server import run as run_module
from aerie.server.app import build_service
from aerie.server.engine_loop import Loaded
from aerie.server.host import ThreadHost
from aerie.server.problems import ApiError
from aerie.server.run import _Watch, serve
from aerie.server.samples import Ask, State
from aerie.server.settings import ServerSettings, Telling
from aerie.server.worker import Worker
from aerie.text.chat import compile_chat_template

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LOOPING = compile_chat_template({"default": LOOP}, {}, "a test")
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(speculation={"method": "none"})


@dataclass
class Running:
    """A server in a thread; it has no signals there."""

    said: list[str] = field(default_factory=list)
    ended: list[Exception | None] = field(default_factory=list)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        port = int(self.said[0].split(":")[2].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def wait(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < until, (self.said, self.ended)
            time.sleep(0.01)


@contextmanager
def served(load: Callable[[], Loaded], **settings: Any) -> Iterator[Running]:
    running = Running()

    def target() -> None:
        try:
            options = ServerSettings(port=0, telling=Telling(log_level="error"), **settings)
            serve(ThreadHost(load), options, running.said.append)
        except Exception as error:
            running.ended.append(error)
        else:
            running.ended.append(None)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    running.wait(lambda: len(running.said) >= 1)
    yield running
    running.wait(lambda: bool(running.ended))
    thread.join()


def test_a_failed_engine_is_told_to_everybody_and_ends_the_server(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "FAILED_SECONDS", 1.0)
    with served(lambda: Loaded(engine, LOOPING), request_seconds=0.2) as server:
        server.wait(lambda: len(server.said) >= 4)
        assert "float32 on cpu" in server.said[1] and "KV for 40" in server.said[1]
        assert server.said[2].startswith("loaded in ") and "recording" in server.said[2]
        assert "live page: http://127.0.0.1:" in server.said[3]

        # A template that loops is ended: chats fail, texts are completed as before.
        for _ in range(6):
            status, told = server.call("POST", "/v1/chat/completions", CHAT)
            assert status == 400 and "too long" in told["error"]["message"]
        text = {"prompt": "x = 1\n", "max_tokens": 2}
        assert server.call("POST", "/v1/completions", text)[0] == 200
        status, told = server.call("GET", "/health")
        assert status == 200 and "template takes too long" in told["chats"]

        # A client that may send requests here may not replace what serves them.
        status, told = server.call("POST", "/admin/reload", {})
        assert status == 403 and "--api-key" in told["error"]["message"]

        def broken() -> Any:
            raise RuntimeError("CUDA error in '/opt/aerie/x.py'")

        monkeypatch.setattr(engine, "step", broken)
        assert server.call("POST", "/v1/completions", text)[0] == 503
        assert server.call("POST", "/v1/completions", text)[0] == 503
        status, told = server.call("GET", "/health")
        assert status == 503 and told["status"] == "failed"
        assert told["reason"] == "RuntimeError: CUDA error in '…'"
    (error,) = server.ended
    assert isinstance(error, AerieError) and "CUDA error" in str(error)


def test_loading_is_told_and_a_load_that_fails_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "LOADING_SECONDS", 0.1)
    is_asked = threading.Event()

    def load() -> Loaded:
        is_asked.wait(30)
        raise AerieError("no such model")

    with served(load) as server:
        server.wait(lambda: any("still loading" in words for words in server.said))
        assert server.call("GET", "/health") == (503, {"status": "loading"})
        assert server.call("POST", "/v1/completions", {"prompt": "a"})[0] == 503
        is_asked.set()
    assert str(server.ended[0]) == "no such model"
    assert not any("is served" in words for words in server.said)


def test_a_full_terminal_does_not_end_a_server() -> None:
    said: list[str] = []

    def full(words: str) -> None:
        said.append(words)
        raise OSError(28, "No space left on device")

    settings = ServerSettings(port=0, telling=Telling(log_level="error"))
    with pytest.raises(AerieError, match="of the load"):
        serve(ThreadHost(_fails), settings, full)
    assert said


def test_the_watch_ends_a_drain_that_takes_too_long(engine: Engine) -> None:
    async def scenario() -> None:
        worker = Worker(ThreadHost(lambda: Loaded(engine, LOOPING)), 10**6)
        worker.start()
        while worker.state is State.LOADING:
            await asyncio.sleep(0.01)
        group = await worker.enter([Ask((1, 2), SamplingParams(max_tokens=20_000), 0)])
        worker.drain()
        server: Any = type("Server", (), {"should_exit": False})()
        service = build_service(worker, ServerSettings(drain_seconds=0))
        await _Watch(server, service, print).run("http://localhost")
        assert server.should_exit and worker.is_quiet
        while not isinstance(last := await group.items.get(), ApiError):
            pass
        assert "the server ends before this request does" in str(last)
        worker.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def _fails() -> Loaded:
    raise AerieError("the end of the load")
