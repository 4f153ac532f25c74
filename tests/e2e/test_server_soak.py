"""Half a minute of clients that come, leave, err and stay: nothing may be left behind."""

import http.client
import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import pytest

from tests.e2e.server_process import TREE, Served, served

SECONDS = 30
CLIENTS = 12
STARTS = ("def f(x):\n", "import os\n", "class A:\n", "x = [", "# a comment\n" * 40)


def visit(server: Served, seed: int, until: float) -> Counter[int]:
    """One client after the other; how many answers had which status, -1 for those it left."""
    rng = random.Random(seed)
    seen: Counter[int] = Counter()
    while time.monotonic() < until:
        seen[_ask(server.connect(), rng)] += 1
    return seen


def _ask(connection: http.client.HTTPConnection, rng: random.Random) -> int:
    asked = {
        "prompt": rng.choice(STARTS),
        "max_tokens": rng.choice([1, 5, 40, 200]),
        "temperature": rng.choice([0, 0.8, 3]),  # 3 is refused
        "stream": rng.random() < 0.5,
        "n": rng.choice([1, 1, 3]),
        "speculative": rng.random() < 0.7,
        "stop": rng.choice([None, "return", ["\n\n"]]),
    }
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(asked), headers)
    try:
        if not asked["stream"] and rng.random() < 0.3:
            return -1
        answer = connection.getresponse()
        if asked["stream"] and rng.random() < 0.4:
            answer.readline()
            answer.close()
            return -1
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.slow
def test_nothing_is_left_behind() -> None:
    with served(*TREE) as server:
        counts: Counter[int] = Counter()
        sizes = []
        for part in range(3):
            until = time.monotonic() + SECONDS / 3
            with ThreadPoolExecutor(CLIENTS) as pool:
                seeds = range(100 * part, 100 * part + CLIENTS)
                for seen in pool.map(visit, repeat(server), seeds, repeat(until)):
                    counts += seen
            sizes.append(server.resident())
        assert set(counts) == {200, 400, -1}, counts
        assert min(counts.values()) > 10, counts
        server.wait_for_nobody()
        assert server.metric("aerie_kv_cache_usage_perc") == 0
        assert sizes[2] < 1.05 * sizes[1], sizes
        assert server.call("GET", "/health").status == 200
