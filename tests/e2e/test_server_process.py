"""The engine's own process: what clients hear when it dies, and that it never outlives a server."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.server_process import TREE, served, started

LONG = {"prompt": "x = 1\n", "max_tokens": 30_000, "ignore_eos": True}


def is_alive(pid: int) -> bool:
    """Whether it runs; one that ended and was not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_who_asks_for_the_impossible_fails_alone_and_a_dead_engine_ends_the_server() -> None:
    with served("--rule", "coins", *TREE) as server, server.stream(LONG) as stream:
        assert stream.readline().startswith(b"data: ")
        # Only the engine knows that its rule does not take this.
        refused = server.call("POST", "/v1/completions", {"prompt": "a", "top_p": 0.5})
        error = refused.body["error"]
        assert refused.status == 400 and "rule coins" in error["message"]
        engine = server.engine_pid
        os.kill(engine, signal.SIGTERM)
        os.kill(engine, signal.SIGINT)
        for _ in range(20):
            assert stream.readline()
        os.kill(engine, signal.SIGKILL)
        began = time.monotonic()
        last = stream.read().decode().rstrip().rpartition("data: ")[2]
        assert "engine failed" in json.loads(last)["error"]["message"]
        health = server.call("GET", "/health")
        assert health.status == 503 and "SIGKILL" in health.body["reason"]
        assert server.call("POST", "/v1/completions", {"prompt": "a"}).status == 503
        assert server.process.wait(10) == 2
        assert time.monotonic() - began < 10
        assert "killed by SIGKILL" in server.log.splitlines()[-1]


@pytest.mark.parametrize("is_ready", [False, True], ids=["loading", "decoding"])
def test_a_killed_server_leaves_no_engine(is_ready: bool) -> None:
    with (served if is_ready else started)(*TREE) as server:
        engine = server.engine_pid
        if is_ready:
            with server.stream(LONG) as stream:
                assert stream.readline().startswith(b"data: ")
                server.process.kill()
        else:
            server.process.kill()
        until = time.monotonic() + 5
        while is_alive(engine):
            assert time.monotonic() < until, "an engine is left"
            time.sleep(0.05)
