"""What exact numerics cost beside fast ones, and long contexts under a batch that changes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aerie.bench.ceilings import synchronise
from aerie.bench.round.setup import Room, RoundSetup, abandon, read_prompts, start
from aerie.bench.round.speed import Clocked
from aerie.config import GraphConfig, SpeculationConfig
from aerie.models.inflate.embed import LargePair
from aerie.requests.params import SamplingParams

SHAPES = {
    "plain": SpeculationConfig(method="none"),
    "chain 7": SpeculationConfig(top_k=1, depth=7, nodes=8),
    "tree 32": SpeculationConfig(top_k=8, depth=5, nodes=32),
}
MOST_EMITTED = 8  # tokens of a round, at most
N_TURNS, N_ROUNDS, N_READS = 4, 10, 5
PROMPTS = (1024, 8192)  # tokens
JOIN_EVERY = 12  # steps
TREE = SpeculationConfig(top_k=4, depth=4, nodes=16)


@dataclass(frozen=True)
class Point:
    """So many requests of one length, decoding in some shapes of rounds."""

    batch: int
    context: int
    shapes: tuple[str, ...] = ("plain", "chain 7")


POINTS = (
    Point(1, 1024, tuple(SHAPES)),
    Point(8, 1024),
    Point(32, 1024),
    Point(1, 32000),
)


def compare_numerics(
    setups: Mapping[str, RoundSetup],
    pairs: Mapping[str, LargePair],
    points: Sequence[Point] = POINTS,
    prompts: Sequence[int] = PROMPTS,
) -> dict[str, Any]:
    """Median times of both, and how much of fast numerics' speed the exact ones keep."""
    rounds: list[dict[str, Any]] = [
        {"batch": point.batch, "context": point.context, "shape": shape}
        | _rounds(setups, pairs, point, SHAPES[shape])
        for point in points
        for shape in point.shapes
    ]
    reads: list[dict[str, Any]] = [
        {"tokens": length} | _reads(setups, pairs, length) for length in prompts
    ]
    return {
        "rounds": rounds,
        "prompts": reads,
        "kept_decoding": min(entry["kept"] for entry in rounds),
        "kept_prompts": min(entry["kept"] for entry in reads),
    }


def _rounds(
    setups: Mapping[str, RoundSetup],
    pairs: Mapping[str, LargePair],
    point: Point,
    shape: SpeculationConfig,
) -> dict[str, Any]:
    """Rounds of one shape, a block of each numerics after the other."""
    most = MOST_EMITTED * (N_TURNS + 1) * (N_ROUNDS + 4)
    clocked, ids = {}, {}
    rows = (point.batch, point.batch * shape.limits.nodes)
    graphs = GraphConfig(slots=(point.batch,), rows=tuple(sorted({*rows})))
    for name, setup in setups.items():
        core = setup.core(
            pairs[name], shape, Room(point.batch, point.context + most, graphs=graphs)
        )
        vocabulary = pairs[name].target.geometry.vocab_size
        ids[name] = start(core, read_prompts(point.batch, point.context, vocabulary), most)
        clocked[name] = Clocked(core)
    for turn in range(N_TURNS + 1):
        for entry in clocked.values():
            entry.block(N_ROUNDS)
            if turn == 0:
                entry.forget()
    for name, entry in clocked.items():
        abandon(entry.core, ids[name])
    raw = {name: [round(ms, 3) for ms in entry.wall] for name, entry in clocked.items()}
    device = {name: entry.phases() for name, entry in clocked.items()}
    return _told(raw) | {"device_ms": device, "raw_ms": raw}


def _reads(
    setups: Mapping[str, RoundSetup], pairs: Mapping[str, LargePair], length: int
) -> dict[str, Any]:
    """A prompt read and one token written, the two numerics in turns."""
    raw: dict[str, list[float]] = {name: [] for name in setups}
    cores = {
        name: setup.core(pairs[name], SHAPES["plain"], Room(1, length + 16))
        for name, setup in setups.items()
    }
    vocabulary = next(iter(pairs.values())).target.geometry.vocab_size
    (prompt,) = read_prompts(1, length, vocabulary)
    for turn in range(N_READS + 1):
        for name, core in cores.items():
            synchronise(setups[name].device)
            begin = time.perf_counter()
            core.submit(prompt, SamplingParams(max_tokens=1, ignore_eos=True))
            while not core.is_idle:
                core.step()
            synchronise(setups[name].device)
            if turn:
                raw[name].append(round(1e3 * (time.perf_counter() - begin), 3))
    return _told(raw) | {"raw_ms": raw}


def _told(raw: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    fast, exact = (round(statistics.median(raw[name]), 4) for name in ("fast", "exact"))
    return {"fast_ms": fast, "exact_ms": exact, "kept": round(fast / exact, 4)}


def stress(
    setup: RoundSetup, pair: LargePair, context: int, n_requests: int, seconds: float
) -> dict[str, Any]:
    """Requests of different lengths join and end while the longest stays; JSON values."""
    batch = 4
    core = setup.core(pair, TREE, Room(batch, context + 256, chunk=8192))
    vocabulary = pair.target.geometry.vocab_size
    longest = read_prompts(1, context, vocabulary)[0]
    free_before = core.memory.ledger.n_free
    ids = [core.submit(longest, SamplingParams(200, ignore_eos=True))]
    lengths = [(context >> (1 + n % 5), 8 + 24 * (n % 3)) for n in range(n_requests)]
    begin = time.perf_counter()
    sizes: set[int] = set()
    memory: list[int] = []
    while not core.is_idle and time.perf_counter() - begin < seconds:
        if len(memory) % JOIN_EVERY == 0 and len(ids) <= n_requests:
            length, n_new = lengths[len(ids) - 1]
            ids.append(core.submit(longest[:length], SamplingParams(n_new, ignore_eos=True)))
        core.step()
        sizes.add(sum(core.request(i).ended is None for i in ids))
        memory.append(torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)
    ended = [core.request(i).ended for i in ids]
    return {
        "context": context,
        "requests": len(ids),
        "finished": sum(end is not None for end in ended),
        "errors": [end.error for end in ended if end is not None and end.reason == "error"],
        "batch_sizes": sorted(sizes),
        "pages_leaked": free_before - core.memory.ledger.n_free,
        "allocated_mb": [round(m / 1e6) for m in memory[:: max(len(memory) // 16, 1)]],
        "seconds": round(time.perf_counter() - begin, 2),
        "ok": core.is_idle and free_before == core.memory.ledger.n_free,
    }
