"""The same prompts three ways, in turns: the core stepped without text, Engine.generate, HTTP.

    PYTHONPATH=src python scripts/three_ways.py OUT.json --model BIG/target --draft BIG/head

What text costs, and what a server costs: prompts are cached, all are submitted at once. The core
and `generate` share one engine; the server is a process of its own, with an engine of its own, and
idle while the others run. HTTP is timed from the first byte sent to the last token read.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from aerie import Engine, SamplingParams
from aerie.bench.record import Origin, interval
from aerie.bench.round.setup import read_prompts
from aerie.bench.serve.load import ask, read_stream, wait_until_ready

READY_SECONDS = 300.0
CORE, GENERATE, HTTP = "core", "generate", "http"


def step_core(engine: Engine, prompts: Sequence[Sequence[int]], n_tokens: int) -> float:
    """Seconds until the core has decided everything; no text is made."""
    core, params = engine.core, SamplingParams(max_tokens=n_tokens, ignore_eos=True)
    begin = time.perf_counter()
    ids = [core.submit(prompt, params) for prompt in prompts]
    while not core.is_idle:
        core.step()
    seconds = time.perf_counter() - begin
    for request_id in ids:
        assert len(core.forget(request_id).output) == n_tokens
    return seconds


def generate(engine: Engine, prompts: Sequence[Sequence[int]], n_tokens: int) -> float:
    """Seconds of the public call."""
    begin = time.perf_counter()
    done = engine.generate(prompts, SamplingParams(max_tokens=n_tokens, ignore_eos=True))
    seconds = time.perf_counter() - begin
    assert all(len(own.token_ids) == n_tokens for own in done)
    return seconds


def stream(url: str, prompts: Sequence[Sequence[int]], n_tokens: int) -> float:
    """Seconds of as many streams as there are prompts, all at once."""
    usage = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"max_tokens": n_tokens, "temperature": 0.0, "ignore_eos": True}
    asked |= {"stream": True, "stream_options": usage}
    bodies = [{**asked, "prompt": list(prompt)} for prompt in prompts]
    begin = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        heard = list(pool.map(partial(ask, url), bodies))
    seconds = time.perf_counter() - begin
    assert all(read_stream(own).n_tokens == n_tokens for own in heard)
    return seconds


def start_server(asked: argparse.Namespace, port: int) -> subprocess.Popen[bytes]:
    """`aerie serve` with the same settings."""
    command = [sys.executable, "-m", "aerie", "serve", "--port", str(port), "--log-level", "error"]
    for name in ("model", "draft", "device", "dtype", "max_batch", "n_pages", "max_model_len"):
        value = getattr(asked, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return subprocess.Popen(command)


def measure(ways: dict[str, Callable[[], float]], n_turns: int) -> list[dict[str, Any]]:
    """Every way once a turn, another one first each time; one turn before them warms up."""
    rows, names = [], list(ways)
    for turn in range(-1, n_turns):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            rows.append({"way": name, "turn": turn, "seconds": ways[name]()})
    return [row for row in rows if row["turn"] >= 0]


def ratio(rows: Sequence[dict[str, Any]], way: str, base: str) -> dict[str, float]:
    """Speed of a way over another's in the same turn: median and interval."""
    seconds = {(row["way"], row["turn"]): row["seconds"] for row in rows}
    turns = sorted({row["turn"] for row in rows})
    return vars(interval(tuple(seconds[base, turn] / seconds[way, turn] for turn in turns)))


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    """Load, start, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--turns", type=int, default=9)
    for name in ("--model", "--draft", "--device", "--dtype"):
        parser.add_argument(name)
    for name in ("--max-batch", "--n-pages", "--max-model-len"):
        parser.add_argument(name, type=int)
    asked = parser.parse_args()
    port = free_port()
    server = start_server(asked, port)
    try:
        names = ("device", "dtype", "max_model_len")
        settings = {n: getattr(asked, n) for n in names if getattr(asked, n) is not None}
        if asked.max_batch is not None:
            settings["scheduler"] = {"max_batch": asked.max_batch}
        if asked.n_pages is not None:
            settings["cache"] = {"n_pages": asked.n_pages}
        engine = Engine.load(asked.model, asked.draft, **settings)
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, READY_SECONDS, "see what the server printed")
        prompts = read_prompts(asked.requests, asked.context, engine.core.limits.vocabulary)
        ways = {
            CORE: partial(step_core, engine, prompts, asked.tokens),
            GENERATE: partial(generate, engine, prompts, asked.tokens),
            HTTP: partial(stream, url, prompts, asked.tokens),
        }
        rows = measure(ways, asked.turns)
        device = engine.config.model.device
    finally:
        server.terminate()
        server.wait()
    found = {
        "made": Origin.of({}, device).facts,
        "requests": asked.requests,
        "context": asked.context,
        "tokens": asked.tokens,
        "generate_to_core": ratio(rows, GENERATE, CORE),
        "http_to_generate": ratio(rows, HTTP, GENERATE),
        "rows": rows,
        "kind": "measured",
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: found[name] for name in ("generate_to_core", "http_to_generate")}))


if __name__ == "__main__":
    main()
