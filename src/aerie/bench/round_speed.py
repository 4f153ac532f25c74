"""What a round costs: plain steps against their bytes, speculative rounds against plain steps."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aerie.bench.round_setup import Room, RoundSetup, copy_bandwidth, read_prompts, start
from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.models.decoder import Decoder
from aerie.models.inflate import LargePair

PLAIN = SpeculationConfig(method="none")
# Five draft levels, sixty-four verified rows: the shape the round tax is defined at.
WIDE_TREE = SpeculationConfig(top_k=8, depth=5, nodes=64)
N_WARM = 6


@dataclass
class Clocked:
    """Times of one engine's rounds, in milliseconds."""

    core: EngineCore
    wall: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    emitted: int = 0

    def round(self) -> None:
        """One step, timed on the host; a device's own time by phase."""
        marks: list[tuple[str, torch.cuda.Event]] = []
        rounds = self.core.rounds
        if rounds is not None and torch.cuda.is_available():
            rounds.graphs.watch = lambda key: marks.append((str(key[0]), _mark()))
            marks.append(("begin", _mark()))
        begin = time.perf_counter()
        events = self.core.step()
        self.wall.append(1e3 * (time.perf_counter() - begin))
        self.emitted += sum(len(getattr(event, "tokens", ())) for event in events)
        for (_, before), (name, after) in itertools.pairwise(marks):
            self.phases.setdefault(name, []).append(before.elapsed_time(after))

    def forget(self) -> None:
        """Drop what was timed so far: warm-up."""
        self.wall.clear()
        self.phases.clear()
        self.emitted = 0

    def summary(self) -> dict[str, Any]:
        """Medians and spread."""
        return {
            "rounds": len(self.wall),
            "ms": round(statistics.median(self.wall), 4),
            "p10_ms": round(_share(self.wall, 0.1), 4),
            "p90_ms": round(_share(self.wall, 0.9), 4),
            "tokens_per_round": round(self.emitted / max(len(self.wall), 1), 3),
            "device_ms": {
                name: round(statistics.median(times), 4) for name, times in self.phases.items()
            },
        }


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _share(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def measure_speed(
    setup: RoundSetup, pair: LargePair, context: int, n_rounds: int
) -> dict[str, Any]:
    """Copy ceiling, plain step and wide round at batch 1, interleaved; JSON values."""
    ceiling = copy_bandwidth(setup.device)
    print(f"ceiling: {ceiling['gbps']:.0f} GB/s, a large copy, bytes read and written", flush=True)
    prompts = read_prompts(1, context, pair.target.geometry.vocab_size)
    clocked = {}
    for name, shape in (("plain", PLAIN), ("round", WIDE_TREE)):
        core = setup.core(pair, shape, Room(1, context + 8 * (n_rounds + N_WARM)))
        start(core, prompts, 8 * (n_rounds + N_WARM))
        clocked[name] = Clocked(core)
    for turn in range(n_rounds + N_WARM):
        if turn == N_WARM:
            for entry in clocked.values():
                entry.forget()
        for entry in clocked.values():
            entry.round()
    plain, wide = (clocked[name].summary() for name in ("plain", "round"))
    n_bytes = step_bytes(pair.target, context + n_rounds // 2, 1)
    floor = 1e3 * n_bytes / (ceiling["gbps"] * 1e9)
    return {
        "ceiling": ceiling,
        "context": context,
        "plain": {**plain, "bytes": n_bytes, "floor_ms": round(floor, 4)},
        "plain_share_of_ceiling": round(floor / plain["ms"], 4),
        "round": wide,
        "round_tax": round(wide["ms"] / plain["ms"], 4),
        "counts": {name: _counts(entry.core) for name, entry in clocked.items()},
    }


def _counts(core: EngineCore) -> dict[str, Any]:
    if core.rounds is None:
        return {}
    return {**vars(core.rounds.counts), **vars(core.rounds.graphs.counts)}


def step_bytes(target: Decoder, context: int, n_rows: int) -> int:
    """Fewest bytes one forward moves: every weight once, the KV of the context, what it writes."""
    geometry = target.geometry
    size = target.embedding.element_size()
    attention = geometry.attention
    per_position = 2 * geometry.n_layers * attention.n_kv_heads * attention.head_dim * size
    query = attention.n_heads * attention.head_dim
    key = attention.n_kv_heads * attention.head_dim
    hidden = geometry.hidden_size
    layer = hidden * (query + 2 * key) + query * hidden + 3 * hidden * geometry.mlp_width
    weights = (geometry.n_layers * layer + geometry.vocab_size * hidden) * size
    return weights + per_position * (context + n_rows) + n_rows * hidden * size
