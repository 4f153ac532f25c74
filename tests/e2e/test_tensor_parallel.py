"""A server whose target is split over two processes: its texts, and what it says when one dies."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aerie import Engine, JsonSchema, SamplingParams
from tests.e2e.server_process import TREE, Served, served

PROMPT = "def read_lines(path):\n"
LIMIT_SECONDS = 10
KEY = "a-key-of-ranks"
BEARER = {"authorization": f"Bearer {KEY}"}

pytestmark = pytest.mark.slow


def follower_of(server: Served) -> int:
    """The process of rank 1, a child of the engine's."""
    (found,) = (
        Path(f"/proc/{server.engine_pid}/task/{server.engine_pid}/children").read_text().split()
    )
    return int(found)


def wait_for_failure(server: Served) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while server.call("GET", "/health").status == 200:
        assert time.monotonic() < until, server.log
        time.sleep(0.05)
    assert "RankLostError: rank 1 was killed by SIGKILL" in server.log


def test_fast_numerics_write_the_same_tokens() -> None:
    """The default on a CPU: sums in another order, and no near tie among so many tokens."""
    pytest.importorskip("llguidance", reason="grammars need llguidance: aerie[grammar]")
    prompts = [PROMPT, "import os\n", "class Stack:\n    def push(self", "x = {", "# a parser"]
    asked = [SamplingParams(max_tokens=48, temperature=t, seed=7) for t in (0.0, 0.7, 1.1)]
    asked.append(replace(asked[1], grammar=JsonSchema({"type": "array", "maxItems": 4})))
    tree = {"top_k": 3, "depth": 4, "nodes": 12}
    found = []
    for ranks, speculation in ((1, {"method": "none"}), (2, {"method": "none"}), (2, tree)):
        with Engine.load(tensor_parallel=ranks, speculation=speculation) as engine:
            made = [engine.generate(prompts, params) for params in asked]
            found.append([own.token_ids for group in made for own in group])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_server_of_two_ranks(is_idle: bool) -> None:
    with served("--tensor-parallel", "2", "--max-num-seqs", "2", *TREE) as server:
        assert server.call("GET", "/about").body["ranks"] == 2
        asked = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0.8, "seed": 5}
        reply = server.call("POST", "/v1/completions", asked)
        params = SamplingParams(max_tokens=32, temperature=0.8, seed=5)
        with Engine.load(speculation={"method": "none"}) as engine:
            assert reply.body["choices"][0]["text"] == engine.generate(PROMPT, params)[0].text
        if is_idle:
            os.kill(follower_of(server), signal.SIGKILL)
        else:
            with server.stream(
                {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True}
            ) as stream:
                stream.readline()
                os.kill(follower_of(server), signal.SIGKILL)
                said = stream.read().decode()
            assert said.strip().splitlines()[-1].startswith('data: {"error":'), said[-400:]
        wait_for_failure(server)


def test_other_weights_come_with_other_ranks() -> None:
    with served("--tensor-parallel", "2", "--api-key", KEY, *TREE) as server:
        asked = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        before = server.call("POST", "/v1/completions", asked, BEARER).body["choices"]
        follower = follower_of(server)
        assert server.call("POST", "/admin/reload", {}, BEARER).status == 200
        assert server.call("POST", "/v1/completions", asked, BEARER).body["choices"] == before
        until = time.monotonic() + LIMIT_SECONDS
        while Path(f"/proc/{follower}").exists():
            assert time.monotonic() < until, "a rank of the weights before is still there"
            time.sleep(0.05)
