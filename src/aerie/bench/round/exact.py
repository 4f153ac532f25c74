"""What exact numerics cost beside fast ones, and long contexts under a batch that changes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from aerie.bench.round.setup import Room, RoundSetup, abandon, read_prompts, start
from aerie.bench.round.speed import Clocked, in_blocks
from aerie.bench.round.texts import write_texts
from aerie.bench.turns import in_turns, timed
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
FAST, EXACT = NUMERICS = ("fast", "exact")
Sides = Mapping[str, tuple[RoundSetup, LargePair]]  # by numerics


# Requests, tokens of each, and the shapes of their rounds.
POINTS = (
    (1, 1024, tuple(SHAPES)),
    (8, 1024, ("plain", "chain 7")),
    (32, 1024, ("plain", "chain 7")),
    (1, 32000, ("plain", "chain 7")),
)


def compare_numerics(sides: Sides) -> dict[str, Any]:
    """Median times of both, and how much of fast numerics' speed the exact ones keep."""
    rounds: list[dict[str, Any]] = [
        {"batch": batch, "context": context, "shape": shape}
        | _rounds(sides, batch, context, SHAPES[shape])
        for batch, context, shapes in POINTS
        for shape in shapes
    ]
    reads: list[dict[str, Any]] = [{"tokens": n} | _reads(sides, n) for n in PROMPTS]
    return {
        "rounds": rounds,
        "prompts": reads,
        "kept_decoding": min(entry["kept"] for entry in rounds),
        "kept_prompts": min(entry["kept"] for entry in reads),
    }


def _rounds(sides: Sides, batch: int, context: int, shape: SpeculationConfig) -> dict[str, Any]:
    """Rounds of one shape, a block of each numerics after the other."""
    most = MOST_EMITTED * (N_TURNS + 1) * (N_ROUNDS + 4)
    clocked, ids = {}, {}
    rows = tuple(sorted({batch, batch * shape.limits.nodes}))
    room = Room(batch, context + most, graphs=GraphConfig(slots=(batch,), rows=rows))
    for name, (setup, pair) in sides.items():
        core = setup.core(pair, shape, room)
        prompts = read_prompts(batch, context, pair.target.geometry.vocab_size)
        ids[name] = start(core, prompts, most)
        clocked[name] = Clocked(core)
    in_blocks(clocked, N_ROUNDS, N_TURNS)
    for name, entry in clocked.items():
        abandon(entry.core, ids[name])
    device = {name: entry.phases() for name, entry in clocked.items()}
    return _told({name: entry.wall for name, entry in clocked.items()}) | {"device_ms": device}


def _reads(sides: Sides, length: int) -> dict[str, Any]:
    """A prompt read and one token written, the two numerics in turns."""
    ways = {}
    for name, (setup, pair) in sides.items():
        core = setup.core(pair, SHAPES["plain"], Room(1, length + 16))
        prompts = read_prompts(1, length, pair.target.geometry.vocab_size)
        ways[name] = timed(partial(write_texts, core, prompts, 1, 0.0), setup.device)
    found = in_turns(ways, N_READS)
    return _told({name: [1e3 * seconds for seconds in own] for name, own in found.items()})


def _told(ms: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Both medians, their ratio, and all times."""
    raw = {name: [round(one, 3) for one in own] for name, own in ms.items()}
    fast, exact = (round(statistics.median(raw[name]), 4) for name in NUMERICS)
    return {"fast_ms": fast, "exact_ms": exact, "kept": round(fast / exact, 4), "raw_ms": raw}


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
