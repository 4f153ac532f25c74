"""Completions over HTTP beside the same ones from an engine in this process, in turns.

The engine is the ceiling: a server can only add to it. Both run the same chain, so that they do
the same work, and every text is compared.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aerie.api import Engine
from aerie.bench.provenance import provenance
from aerie.bench.record import percentiles, shown
from aerie.bench.serve.client import Reply, ask, read_stream, read_whole
from aerie.requests.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

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
    points = []
    for n_clients in load.clients:
        prompts = [f"# {index}\n{STARTS[index % len(STARTS)]}" for index in range(n_clients)]
        ways: dict[str, Callable[[], Turn]] = {
            "engine": partial(_straight, engine, prompts, load),
            "stream": partial(_served, load, prompts, is_stream=True),
            "whole": partial(_served, load, prompts, is_stream=False),
        }
        turns: dict[str, list[Turn]] = {name: [] for name in ways}
        for way in ways.values():
            way()
        for _ in range(load.turns):
            for name, way in ways.items():
                turns[name].append(way())
            advance()
        points.append(_point(n_clients, load, turns))
    return {
        "new_tokens": load.new_tokens,
        "turns": load.turns,
        "speculation": CHAIN,
        "points": points,
        "ok": all(point["same_text"] for point in points),
        "kind": "measured",
        "provenance": provenance("cpu"),
    }


def _straight(engine: Engine, prompts: Sequence[str], load: Load) -> Turn:
    params = SamplingParams(max_tokens=load.new_tokens, ignore_eos=True)
    start = time.perf_counter()
    texts = tuple(completion.text for completion in engine.generate(prompts, params))
    return Turn(texts, time.perf_counter() - start)


def _served(load: Load, prompts: Sequence[str], is_stream: bool) -> Turn:
    start = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        replies = list(pool.map(lambda prompt: _ask(load, prompt, is_stream), prompts))
    seconds = time.perf_counter() - start
    firsts = tuple(reply.first_seconds for reply in replies)
    return Turn(tuple(reply.text for reply in replies), seconds, firsts)


def _ask(load: Load, prompt: str, is_stream: bool) -> Reply:
    asked = {
        "prompt": prompt,
        "max_tokens": load.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": is_stream,
    }
    heard = ask(load.url, asked)
    return read_stream(heard) if is_stream else read_whole(heard)


def _point(n_clients: int, load: Load, turns: dict[str, list[Turn]]) -> dict[str, Any]:
    n_tokens = n_clients * load.new_tokens
    speeds = {name: [n_tokens / turn.seconds for turn in own] for name, own in turns.items()}
    ratios = {
        name: [own / base for own, base in zip(speeds[name], speeds["engine"], strict=True)]
        for name in ("stream", "whole")
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


def write(found: dict[str, Any], folder: Path) -> None:
    """The record, for the reports."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def table_of(found: dict[str, Any]) -> Table:
    """Speeds beside the engine's, a row for each number of clients."""
    return shown(COLUMNS, found["points"])
