"""A client of an OpenAI-compatible server: it stamps what arrives, and reads it afterwards."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aerie.errors import UsageError

TIMEOUT_SECONDS = 120
EVENT = b"data: {"
# aerie and vLLM count under the same names, behind one of their own.
COUNTER = re.compile(
    r"^\w+[:_](?:spec_decode_)?(?P<name>num_drafts|num_draft_tokens|num_accepted_tokens"
    r"|prefix_cache_queries|prefix_cache_hits|graphs_recorded)"
    r"(?:_total)?(?:{[^}]*})? (?P<value>\S+)$",
    re.MULTILINE,
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
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=TIMEOUT_SECONDS)
    sent = json.dumps(body)
    start = time.perf_counter()
    try:
        path = f"{place.path.rstrip('/')}{page}"
        connection.request("POST", path, sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise UsageError(f"the server answers {answer.status}: {answer.read(300)!r}")
        lines = tuple((time.perf_counter() - start, line) for line in answer)
        return Heard(lines, time.perf_counter() - start)
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


def look_up(url: str, path: str) -> str | None:
    """A page on which a server speaks of itself; None where it has no such page."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{place.path.rstrip('/')}{path}")
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else None
    finally:
        connection.close()


def read_counters(page: str) -> dict[str, int]:
    """Drafts, prefix hits and recorded graphs of a `/metrics` page, as far as they are counted."""
    return {found["name"]: int(float(found["value"])) for found in COUNTER.finditer(page)}


def wait_until_ready(url: str, seconds: float, hint: str) -> None:
    """Return when `/health` says so; `hint` is what to do when it fails."""
    place = urlsplit(url)
    until = time.monotonic() + seconds
    while True:
        connection = http.client.HTTPConnection(place.netloc, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", f"{place.path.rstrip('/')}/health")
            if connection.getresponse().status == 200:
                return
            reason = "is not ready"
        except OSError as error:
            reason = f"does not answer ({error})"
        finally:
            connection.close()
        if time.monotonic() > until:
            raise UsageError(f"{url} {reason}; {hint}")
        time.sleep(0.1)
