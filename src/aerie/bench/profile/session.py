"""One run of `aerie profile`: where it runs, its operating points, and what its stages share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from aerie.assemble.device import device_name
from aerie.bench.bytes import Load
from aerie.bench.ceilings import Ceilings, copy_bandwidth, matmul_tflops
from aerie.bench.provenance import Meter, device_label, open_meter
from aerie.bench.record import Origin
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.graphs import smallest
from aerie.models.inflate.embed import LargePair

T = TypeVar("T")
WARM_ROUNDS = 6
POLICIES = {
    "plain": SpeculationConfig(method="none"),
    "chain3": SpeculationConfig(top_k=1, depth=3, nodes=4),
    "chain5": SpeculationConfig(top_k=1, depth=5, nodes=6),
    "tree3": SpeculationConfig(top_k=4, depth=3, nodes=8),
    "tree5": SpeculationConfig(top_k=8, depth=5, nodes=64),
}
CHUNK = 8192  # prompt tokens a step while a point is prepared


@dataclass(frozen=True)
class Sizes:
    """How much is run at every point."""

    timed: int = 64  # rounds on the host's clock
    traced: int = 12
    energy_seconds: float = 1.0

    @property
    def new_tokens(self) -> int:
        """Room for all of it, energy included, at eight tokens a round and 4 ms a round."""
        rounds = WARM_ROUNDS + self.timed + self.traced + 64 + int(self.energy_seconds / 0.004)
        return 8 * rounds


@dataclass(frozen=True, eq=False)
class Session:
    """Options, and what is made once: the pair, the ceilings, the provenance of each stage."""

    setup: RoundSetup
    out: Path
    points: tuple[Point, ...]
    policy: str = "tree3"
    sizes: Sizes = Sizes()
    is_rehearsal: bool = False  # the same code on sizes a CPU can run
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def pair(self) -> LargePair:
        """The pair, loaded once."""
        return self.shared("pair", self.setup.load)

    @property
    def ceilings(self) -> Ceilings:
        """Measured once, and printed before anything is held against them."""
        return self.shared("ceilings", self._measure)

    @property
    def meter(self) -> Meter | None:
        """The device's energy counter."""
        return self.shared("meter", lambda: open_meter(self.setup.device))

    @property
    def device_name(self) -> str:
        """As files are named by."""
        return device_label(device_name(self.setup.device))

    def origin(self, stage: str) -> Origin:
        """Provenance of a stage."""
        options = {
            "stage": stage,
            "setup": asdict(self.setup),
            "points": [point.name for point in self.points],
            "policy": self.policy,
            "sizes": asdict(self.sizes),
            "is_rehearsal": self.is_rehearsal,
        }
        return self.shared(f"origin {stage}", lambda: Origin.of(options, self.setup.device))

    def _measure(self) -> Ceilings:
        device = self.setup.device
        found = Ceilings(copy_bandwidth(device)["gbps"], matmul_tflops(device))
        print(
            f"ceilings: {found.copy_gbps:.0f} GB/s, a large copy read and written;"
            f" {found.matmul_tflops:.0f} TFLOP/s, a large bf16 product",
            flush=True,
        )
        return found

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """What stages share, made when it is first asked for."""
        if name not in self.kept:
            self.kept[name] = make()
        found: T = self.kept[name]
        return found


def release() -> None:
    """Give back what dropped engines held: their memory is the next point's."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Point:
    """Requests of one length."""

    context: int
    batch: int

    @property
    def name(self) -> str:
        """As tables and files call it."""
        return f"{self.context}x{self.batch}"

    def load(self, speculation: SpeculationConfig, graphs: GraphConfig, n_live: int) -> Load:
        """What a captured round of `n_live` of its requests has to do, padded to its bucket."""
        slots = smallest(graphs.slots, n_live)
        per_request = 1 if speculation.method == "none" else speculation.limits.nodes
        rows = smallest(graphs.rows, n_live * per_request + slots - n_live)
        return Load(slots, self.context, rows)

    def open(self, core: EngineCore, new_tokens: Sequence[int]) -> list[int]:
        """Requests of an engine behind its prompts, all decoding; what it read before is found."""
        prompts = read_prompts(self.batch, self.context, core.limits.vocabulary)
        return start(core, prompts, new_tokens)


def room_at(point: Point, new_tokens: int, graphs: GraphConfig | None = None) -> Room:
    """Memory for a point and what is generated at it."""
    context, own = point.context + new_tokens, GraphConfig() if graphs is None else graphs
    return Room(point.batch, context, CHUNK, graphs=own, prefix_reuse=True)
