"""Servers that scripts try, and completions whose tokens are known: an engine alone wrote them."""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

# An engine decodes beside the server: on a busy machine threads that await each other spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from aerie import Engine, SamplingParams
from tests.e2e.server_process import TREE, Served, served

HEADERS = {"content-type": "application/json"}
# The same tokens whoever else is served, and a tree that is drafted whatever was measured.
EXACT = ("--device", "cpu", "--numerics", "exact", *TREE)
SPECULATION = {"top_k": 2, "depth": 3, "nodes": 8}  # as TREE has it
STARTS = (
    "def read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(top):\n",
    "for index, name in enumerate(names):\n",
    "x = [",
    "# a comment\n" * 12,
)
# How a stream ends, beside `status N`.
TOKENS, EVENT, CLOSED, SILENT = "all its tokens", "an error event", "a closed connection", "silence"
UNREACHED = "no server"
END_SECONDS = 60


@contextmanager
def serving(*options: str, **how: str) -> Iterator[Served]:
    """A server of this checkout's sources, told to end at the end of the block."""
    with served(*options, **how) as server:
        try:
            yield server
        finally:
            server.process.terminate()
            with suppress(subprocess.TimeoutExpired):  # then it is killed
                server.process.wait(END_SECONDS)


@dataclass(frozen=True)
class Known:
    """A request and the text that an engine alone gives for it."""

    body: dict[str, Any]
    text: str


def known_asks(n_asks: int, n_tokens: int, seed: int) -> list[Known]:
    """Greedy and sampled, with and without penalties, stops and drafts."""
    rng = random.Random(seed)
    engine = Engine.load(numerics="exact", speculation=SPECULATION)
    found = []
    for index in range(n_asks):
        own: dict[str, Any] = {
            "temperature": rng.choice([0.0, 0.7, 1.0]),
            "seed": rng.randrange(1 << 40),
            "top_p": rng.choice([1.0, 0.9]),
            "top_k": rng.choice([0, 0, 20]),
            "repetition_penalty": rng.choice([1.0, 1.0, 1.2]),
            "ignore_eos": True,
            "speculative": rng.random() < 0.8,
        }
        prompt = f"# {index}\n{rng.choice(STARTS)}"
        most = rng.randint(max(1, n_tokens // 2), n_tokens)
        (completion,) = engine.generate(prompt, SamplingParams(max_tokens=most, **own))
        body = {"prompt": prompt, "max_tokens": most, **own}
        found.append(Known(body, completion.text))
    return found


@dataclass(frozen=True)
class Ending:
    """How a stream ended, as its client saw it."""

    kind: str  # one of the above
    text: str = ""


def verdict(server: Served, known: Known) -> str:
    """Whether a stream that must end has the text it must have."""
    ending = ask(server.port, known.body)
    if ending.kind != TOKENS:
        return "lost"
    return "equal" if ending.text == known.text else "wrong"


def ask(port: int, body: dict[str, Any], patience: float = 120.0) -> Ending:
    """Stream a completion to its end; silence is `patience` seconds without a byte."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
    try:
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), HEADERS)
        answer = connection.getresponse()
        if answer.status != 200:
            answer.read()
            return Ending(f"status {answer.status}")
        return _read(answer)
    except TimeoutError:
        return Ending(SILENT)
    except ConnectionRefusedError:
        return Ending(UNREACHED)
    except (OSError, http.client.HTTPException):
        return Ending(CLOSED)
    finally:
        connection.close()


def _read(answer: http.client.HTTPResponse) -> Ending:
    text, reason = "", None
    for line in answer:
        data = line.strip().removeprefix(b"data: ")
        if data == b"[DONE]":
            return Ending(TOKENS if reason == "length" else CLOSED, text)
        if data:
            told = json.loads(data)
            if "error" in told:
                return Ending(EVENT, text)
            (choice,) = told["choices"]
            text, reason = text + choice["text"], choice["finish_reason"] or reason
    return Ending(CLOSED, text)
