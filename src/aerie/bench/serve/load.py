"""Completions over HTTP beside the same ones from an engine in this process, in turns.

The engine is the ceiling: a server can only add to it. Both run the same chain, so that they do
the same work, and every text is compared. The client stamps what arrives, and reads it afterwards.
"""

from __future__ import annotations

import http.client
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch

from aerie.api import Engine
from aerie.bench.provenance import provenance
from aerie.bench.record import percentiles, shown
from aerie.bench.turns import in_turns
from aerie.errors import UsageError
from aerie.requests.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

TIMEOUT_SECONDS = 120
EVENT = b"data: {"
# aerie and vLLM count under the same names, behind one of their own.
COUNTER = re.compile(
    r"^\w+[:_](?:spec_decode_)?(?P<name>num_drafts|num_draft_tokens|num_accepted_tokens"
    r"|prefix_cache_queries|prefix_cache_hits|graphs_recorded)"
    r"(?:_total)?(?:{[^}]*})? (?P<value>\S+)$",
    re.MULTILINE,
)
REPORT = "server_cpu.json"
COLUMNS = {
    "clients": "{clients}",
    "engine tok/s": "{tokens_per_second[engine]:.0f}",
    "stream": "{tokens_per_second[stream]:.0f}",
    "of engine": "{ratio_to_engine[stream]:.2f}",
    "whole": "{tokens_per_second[whole]:.0f}",
    "of engine ": "{ratio_to_engine[whole]:.2f}",
    "TTFT ms": "{first_text_ms[p50]:.0f}",
}
CHAIN = {"top_k": 1, "depth": 5, "nodes": 6}
SERVER_OPTIONS = (
    f"--speculative-eagle-topk {CHAIN['top_k']} --speculative-num-steps {CHAIN['depth']}"
    f" --speculative-num-draft-tokens {CHAIN['nodes']}"
)
STARTS = (
    "def read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(top):\n",
    "for index, name in enumerate(names):\n",
)


@dataclass(frozen=True)
class Arrival:
    """Text that came at once; `n_tokens` is None where the server does not say how many."""

    seconds: float  # since the request was sent
    n_tokens: int | None


@dataclass(frozen=True)
class Reply:
    """One completion as a client saw it; without a stream its text arrives whole."""

    text: str
    seconds: float
    arrivals: tuple[Arrival, ...]
    n_tokens: int | None  # of the whole, as the server counts
    n_prompt: int | None

    @property
    def first_seconds(self) -> float:
        """Until the first text; all of it where none came."""
        return self.arrivals[0].seconds if self.arrivals else self.seconds


@dataclass(frozen=True)
class Heard:
    """The lines of an answer, each with the second it came; not looked at yet."""

    lines: tuple[tuple[float, bytes], ...]
    seconds: float


def ask(url: str, body: Mapping[str, Any], page: str = "/v1/completions") -> Heard:
    """Post a completion and wait for its end; UsageError where the server refuses it."""
    sent = json.dumps(body)
    start = time.perf_counter()
    with _answer(url, page, "POST", sent) as answer:
        if answer.status != 200:
            raise UsageError(f"the server answers {answer.status}: {answer.read(300)!r}")
        lines = tuple((time.perf_counter() - start, line) for line in answer)
        return Heard(lines, time.perf_counter() - start)


@contextmanager
def _answer(
    url: str, page: str, method: str, sent: str | None = None
) -> Iterator[http.client.HTTPResponse]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=TIMEOUT_SECONDS)
    try:
        path = f"{place.path.rstrip('/')}{page}"
        connection.request(method, path, sent, {"content-type": "application/json"})
        yield connection.getresponse()
    finally:
        connection.close()


def read_json(heard: Heard) -> Any:
    """An answer without a stream, as it is."""
    return json.loads(b"".join(line for _, line in heard.lines))


def read_whole(heard: Heard) -> Reply:
    """A completion without a stream."""
    found = read_json(heard)
    text, usage = found["choices"][0]["text"], found.get("usage") or {}
    n_tokens = usage.get("completion_tokens")
    arrived = (Arrival(heard.seconds, n_tokens),)
    return Reply(text, heard.seconds, arrived, n_tokens, usage.get("prompt_tokens"))


def read_stream(heard: Heard) -> Reply:
    """A stream's text, and when it came; UsageError where it ends with an error.

    With `continuous_usage_stats` every event says how many tokens there are so far. Events that
    bring nothing (the role, why it ended) are no arrivals.
    """
    parts: list[str] = []
    arrivals: list[Arrival] = []
    usage: dict[str, Any] = {}
    n_seen = 0
    for at, line in heard.lines:
        if not line.startswith(EVENT):
            continue
        event = json.loads(line[len(EVENT) - 1 :])
        if "error" in event:
            raise UsageError(f"the stream ends with an error: {event['error']!r:.300}")
        usage = event.get("usage") or usage
        text = "".join(choice["text"] for choice in event["choices"])
        parts.append(text)
        if event["choices"] and event.get("usage"):
            n_new = usage["completion_tokens"] - n_seen
            n_seen += n_new
            if n_new:
                arrivals.append(Arrival(at, n_new))
        elif text:
            arrivals.append(Arrival(at, None))
    n_tokens, n_prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
    return Reply("".join(parts), heard.seconds, tuple(arrivals), n_tokens, n_prompt)


def look_up(url: str, page: str) -> str | None:
    """A page on which a server speaks of itself; None where it has no such page."""
    with _answer(url, page, "GET") as answer:
        return answer.read().decode() if answer.status == 200 else None


def read_counters(page: str) -> dict[str, int]:
    """Drafts, prefix hits and recorded graphs of a `/metrics` page, as far as they are counted."""
    return {found["name"]: int(float(found["value"])) for found in COUNTER.finditer(page)}


def wait_until_ready(url: str, seconds: float, hint: str) -> None:
    """Return when `/health` says so; `hint` is what to do when it fails."""
    until = time.monotonic() + seconds
    while True:
        try:
            if look_up(url, "/health") is not None:
                return
            reason = "is not ready"
        except OSError as error:
            reason = f"does not answer ({error})"
        if time.monotonic() > until:
            raise UsageError(f"{url} {reason}; {hint}")
        time.sleep(0.1)


# How a server may be asked, and how its answer is read then.
SERVED = {"stream": read_stream, "whole": read_whole}


@dataclass(frozen=True)
class Load:
    """What is asked for."""

    url: str
    clients: tuple[int, ...] = (1, 4, 16)  # at a time
    turns: int = 7
    new_tokens: int = 128


@dataclass(frozen=True)
class Turn:
    """All clients of one turn."""

    texts: tuple[str, ...]
    seconds: float
    first_seconds: tuple[float, ...] = ()


def measure(load: Load, advance: Callable[[], None]) -> dict[str, Any]:
    """Every number of clients: engine, streams and whole answers in turns."""
    torch.set_num_threads(1)  # as the server does for this pair
    engine = Engine.load(device="cpu", speculation=CHAIN)
    points = [_point(engine, n_clients, load, advance) for n_clients in load.clients]
    return {
        "new_tokens": load.new_tokens,
        "turns": load.turns,
        "speculation": CHAIN,
        "points": points,
        "ok": all(point["same_text"] for point in points),
        "kind": "measured",
        "provenance": provenance("cpu"),
    }


def _point(
    engine: Engine, n_clients: int, load: Load, advance: Callable[[], None]
) -> dict[str, Any]:
    prompts = [f"# {index}\n{STARTS[index % len(STARTS)]}" for index in range(n_clients)]

    def run(way: str) -> Turn:
        turn = _straight(engine, prompts, load) if way == "engine" else _served(load, prompts, way)
        advance()
        return turn

    turns = in_turns({way: partial(run, way) for way in ("engine", *SERVED)}, load.turns)
    n_tokens = n_clients * load.new_tokens
    speeds = {name: [n_tokens / turn.seconds for turn in own] for name, own in turns.items()}
    ratios = {
        name: [own / base for own, base in zip(speeds[name], speeds["engine"], strict=True)]
        for name in SERVED
    }
    firsts = [seconds for turn in turns["stream"] for seconds in turn.first_seconds]
    texts = {turn.texts for own in turns.values() for turn in own}
    return {
        "clients": n_clients,
        "tokens_per_second": {name: round(statistics.median(v), 1) for name, v in speeds.items()},
        "ratio_to_engine": {name: round(statistics.median(v), 4) for name, v in ratios.items()},
        "ratios": {name: [round(value, 4) for value in v] for name, v in ratios.items()},
        "first_text_ms": percentiles([1e3 * seconds for seconds in firsts], 2),
        "same_text": len(texts) == 1,
    }


def _straight(engine: Engine, prompts: Sequence[str], load: Load) -> Turn:
    params = SamplingParams(max_tokens=load.new_tokens, ignore_eos=True)
    start = time.perf_counter()
    texts = tuple(completion.text for completion in engine.generate(prompts, params))
    return Turn(texts, time.perf_counter() - start)


def _served(load: Load, prompts: Sequence[str], way: str) -> Turn:
    asked = {"max_tokens": load.new_tokens, "temperature": 0, "ignore_eos": True}
    bodies = [{"prompt": prompt, **asked, "stream": way == "stream"} for prompt in prompts]
    start = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        heard = list(pool.map(partial(ask, load.url), bodies))
    seconds = time.perf_counter() - start
    replies = list(map(SERVED[way], heard))
    firsts = tuple(reply.first_seconds for reply in replies)
    return Turn(tuple(reply.text for reply in replies), seconds, firsts)


def table_of(found: dict[str, Any]) -> Table:
    """Speeds beside the engine's, a row for each number of clients."""
    return shown(COLUMNS, found["points"])
