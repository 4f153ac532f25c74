"""One run of `aerie profile`: where it runs, how large it is, and what its stages share."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from aerie.bench.profile.point import Point
from aerie.bench.provenance import Meter, open_meter
from aerie.bench.record import Origin
from aerie.bench.round.setup import RoundSetup, copy_bandwidth, synchronise
from aerie.models.inflate import LargePair

WARM_ROUNDS = 6


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


@dataclass(frozen=True)
class Ceilings:
    """What this device does at best, measured here."""

    copy_gbps: float  # a large copy, bytes read and written
    matmul_tflops: float  # a large product in bfloat16


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
        pair: LargePair = self.shared("pair", self.setup.load)
        return pair

    @property
    def ceilings(self) -> Ceilings:
        """Measured once, and printed before anything is held against them."""
        found: Ceilings = self.shared("ceilings", self._measure)
        return found

    @property
    def meter(self) -> Meter | None:
        """The device's energy counter."""
        meter: Meter | None = self.shared("meter", lambda: open_meter(self.setup.device))
        return meter

    @property
    def device_name(self) -> str:
        """As files are named by: the last word of the device's own name, or cpu."""
        if not self.setup.device.startswith("cuda"):
            return "cpu"
        return torch.cuda.get_device_name(self.setup.device).split()[-1].lower()

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
        found: Origin = self.shared(
            f"origin {stage}", lambda: Origin.of(options, self.setup.device)
        )
        return found

    def _measure(self) -> Ceilings:
        device = self.setup.device
        found = Ceilings(copy_bandwidth(device)["gbps"], matmul_tflops(device))
        print(
            f"ceilings: {found.copy_gbps:.0f} GB/s, a large copy read and written;"
            f" {found.matmul_tflops:.0f} TFLOP/s, a large bf16 product",
            flush=True,
        )
        return found

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """What stages share, made when it is first asked for."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


def release() -> None:
    """Give back what dropped engines held: their memory is the next point's."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def matmul_tflops(device: str) -> float:
    """The fastest large product in bfloat16 this device does: the ceiling of reading prompts."""
    is_gpu = device.startswith("cuda")
    size = 8192 if is_gpu else 256
    dtype = torch.bfloat16 if is_gpu else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(13):
        synchronise(device)
        begin = time.perf_counter()
        a @ b
        synchronise(device)
        times.append(time.perf_counter() - begin)
    return 2 * size**3 / statistics.median(times[3:]) / 1e12
