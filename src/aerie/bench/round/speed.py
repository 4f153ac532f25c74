"""What a round costs: plain steps against their bytes, speculative rounds against plain steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from aerie.bench.bytes import step_bytes
from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start
from aerie.bench.turns import in_turns
from aerie.config import SpeculationConfig
from aerie.engine.captured import Captured
from aerie.engine.engine import EngineCore
from aerie.models.inflate.embed import LargePair
from aerie.tune.clock import DeviceClock, clock_of, marked

PLAIN = SpeculationConfig(method="none")
# Five draft levels, sixty-four verified rows: the shape the round tax is defined at.
WIDE_TREE = SpeculationConfig(top_k=8, depth=5, nodes=64)
# Engines take turns in blocks: clocks drift for all alike, and none hides its host's work behind
# another's rounds.
N_BLOCKS, LEAD_IN, N_SPARE = 4, 2, 48


@dataclass
class Clocked:
    """Times of one engine's rounds, in milliseconds."""

    core: EngineCore
    wall: list[float] = field(default_factory=list)
    spans: list[tuple[str, tuple[Any, Any]]] = field(default_factory=list)  # marks around graphs
    emitted: int = 0

    def __post_init__(self) -> None:
        self.clock = clock_of(self.core.memory.table.device)

    def block(self, n_rounds: int) -> None:
        """Rounds one after the other; the first two still share the device with what ran before."""
        for _ in range(LEAD_IN):
            self.core.step()
        for _ in range(n_rounds):
            self.round()

    def round(self) -> None:
        """One step, timed on the host; the graphs of the round it starts, where they run."""
        with marked(self.core.launcher.graphs, self.clock) as spans:
            begin = time.perf_counter()
            events = self.core.step()
            self.wall.append(1e3 * (time.perf_counter() - begin))
        self.emitted += n_tokens_of(events)
        self.spans += spans

    def forget(self) -> None:
        """Drop what was timed so far: warm-up."""
        self.wall.clear()
        self.spans.clear()
        self.emitted = 0

    def phases(self) -> dict[str, float]:
        """Median device time of each graph by its name; waits for the device."""
        found: dict[str, list[float]] = {}
        for name, marks in self.spans:
            found.setdefault(name, []).append(1e3 * self.clock.seconds(*marks))
        return {name: round(statistics.median(times), 4) for name, times in found.items()}

    def idle_us(self) -> float | None:
        """Of a round, in which no graph ran; None where graphs are called on a host."""
        if not isinstance(self.clock, DeviceClock):
            return None
        gaps = [self.clock.seconds(a[1], b[0]) for (_, a), (_, b) in pairwise(self.spans)]
        return round(1e6 * sum(gaps) / len(self.wall), 1)

    def summary(self) -> dict[str, Any]:
        """Medians and spread."""
        ordered, last = sorted(self.wall), len(self.wall) - 1
        return {
            "rounds": len(self.wall),
            "ms": round(statistics.median(self.wall), 4),
            "p10_ms": round(ordered[int(0.1 * last)], 4),
            "p90_ms": round(ordered[int(0.9 * last)], 4),
            "tokens_per_round": round(self.emitted / max(len(self.wall), 1), 3),
            "device_ms": self.phases(),
        }


def n_tokens_of(events: Iterable[object]) -> int:
    """Tokens that a step emitted."""
    return sum(len(getattr(event, "tokens", ())) for event in events)


def in_blocks(
    clocked: Mapping[str, Clocked],
    n_rounds: int,
    n_blocks: int,
    beside: Callable[[], Any] | None = None,
) -> list[Any]:
    """Blocks of all engines in turns, behind one of each that warms up; what `beside` returned."""
    ways: dict[str, Callable[[], Any]] = {} if beside is None else {"beside": beside}
    ways |= {name: partial(entry.block, n_rounds) for name, entry in clocked.items()}
    in_turns(ways, 0)
    for entry in clocked.values():
        entry.forget()
    return in_turns(ways, n_blocks, 0).get("beside", [])


def measure_speed(
    setup: RoundSetup, pair: LargePair, context: int, n_rounds: int
) -> tuple[dict[str, Any], dict[str, EngineCore]]:
    """A large copy, plain step and wide round at batch 1, in turns; and the warm engines."""
    prompts = read_prompts(1, context, pair.target.geometry.vocab_size)
    # Enough for the slowest finish: a round emits at most six tokens.
    most = 6 * ((N_BLOCKS + 1) * (n_rounds // N_BLOCKS + LEAD_IN) + N_SPARE)
    clocked = {}
    for name, shape in (("plain", PLAIN), ("round", WIDE_TREE)):
        core = setup.core(pair, shape, Room(1, context + most))
        start(core, prompts, most)
        clocked[name] = Clocked(core)
    # A copy as warm as what is held against it.
    copying = partial(copy_bandwidth, setup.device)
    copies = in_blocks(clocked, n_rounds // N_BLOCKS, N_BLOCKS, copying)
    ceiling = sorted(copies, key=lambda copy: float(copy["gbps"]))[N_BLOCKS // 2]
    n_bytes = step_bytes(pair.target, context + n_rounds // 2, 1)
    floor = 1e3 * n_bytes / (ceiling["gbps"] * 1e9)
    print(
        f"ceiling: {ceiling['gbps']:.0f} GB/s, a large copy, bytes read and written: no plain step"
        f" below {floor:.3f} ms",
        flush=True,
    )
    plain, wide = (clocked[name].summary() for name in ("plain", "round"))
    found = {
        "ceiling": ceiling,
        "copies_gbps": [round(copy["gbps"], 1) for copy in copies],
        "context": context,
        "plain": {**plain, "bytes": n_bytes, "floor_ms": round(floor, 4)},
        "plain_share_of_ceiling": round(floor / plain["ms"], 4),
        "round": wide,
        "round_tax": round(wide["ms"] / plain["ms"], 4),
        "raw_ms": {name: [round(ms, 4) for ms in entry.wall] for name, entry in clocked.items()},
        "counts": {name: launch_counts(entry.core) for name, entry in clocked.items()},
    }
    return found, {name: entry.core for name, entry in clocked.items()}


def run_without_waiting(core: EngineCore, n_rounds: int) -> str | None:
    """Rounds with every wait of the host an error, but for the read of the report; None: none."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(n_rounds):
            core.step()
    except RuntimeError as error:
        return str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def step_to_room(core: EngineCore, n_positions: int) -> None:
    """Step until nobody takes a page for so many tokens: no table is written meanwhile."""
    for _ in range(64):
        if core.is_covered(n_positions):
            return
        core.step()


def launch_counts(core: EngineCore) -> dict[str, Any]:
    """How rounds and graphs were launched so far."""
    launcher = core.launcher
    rounds = vars(launcher.counts) if isinstance(launcher, Captured) else {}
    return {**rounds, **vars(launcher.graphs.counts)}
