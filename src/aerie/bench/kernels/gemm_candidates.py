"""What the GEMM tuner tries: shapes of a production decoder and its draft head, and plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerie.chips import DeviceRecord
    from aerie.kernels.triton_gpu.gemm_plan import Key, Plan


@dataclass(frozen=True)
class Shape:
    """A weight, and how often one forward of the target reads one like it (0: the draft's)."""

    name: str
    n_out: int
    n_in: int
    per_forward: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the weight in bfloat16."""
        return 2 * self.n_out * self.n_in


@dataclass(frozen=True)
class Timed:
    """A plan and its time."""

    plan: Plan
    us: float


@dataclass(frozen=True)
class Tuned:
    """The chosen plan of one shape, with what it was measured against."""

    key: Key
    plan: Plan
    us: float
    cublas_us: float
    error: float
    cublas_error: float
    gbps: float
    tried: int
    others: tuple[Timed, ...] = ()  # those that were nearly as fast by themselves

    def by(self, other: Timed) -> Tuned:
        """The same shape by one of the others."""
        gbps = round(self.gbps * self.us / other.us, 1)
        return replace(self, plan=other.plan, us=other.us, gbps=gbps)


# An 8B decoder of 32 layers (hidden 4096, FFN 14336, vocabulary 128,256) and its EAGLE-3 head.
SHAPES = (
    Shape("qkv", 6144, 4096, 32),
    Shape("o", 4096, 4096, 32),
    Shape("gate_up", 28672, 4096, 32),
    Shape("down", 4096, 14336, 32),
    Shape("head", 128256, 4096, 1),
    Shape("draft_qkv", 6144, 8192),
    Shape("draft_fc", 4096, 12288),
    Shape("draft_head", 32000, 4096),
    Shape("odd", 34560, 2880),
)

# (block_n, block_k, warps, stages). A program's loads in flight are what counts: tiles of 16 to
# 64 KB, some deep in stages, some with several programs to a multiprocessor.
_GEMV = ((4, 1024, 4, 1), (8, 512, 4, 1), (16, 256, 4, 1), (8, 1024, 8, 1), (8, 512, 4, 4),
         (16, 64, 4, 1))  # fmt: skip
_DOT = {
    16: ((32, 128, 4, 4), (32, 256, 4, 3), (64, 64, 4, 5), (64, 128, 4, 3), (64, 128, 4, 5),
         (64, 256, 4, 3), (128, 64, 4, 4), (128, 128, 4, 3), (16, 512, 2, 4)),
    32: ((64, 64, 4, 5), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 4, 3), (128, 128, 8, 3)),
    64: ((64, 64, 4, 4), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 4, 3), (128, 128, 8, 3),
         (256, 64, 8, 3)),
    128: ((64, 64, 4, 4), (128, 64, 4, 4), (128, 64, 8, 4), (128, 128, 8, 3), (256, 64, 8, 3)),
}  # fmt: skip
_SPLITS = (1, 2, 3, 4, 6, 8)
# Of a card of 132 multiprocessors: fewer programs leave some idle, many more only wait in line.
_PROCESSORS, _LEAST_PROGRAMS, _MOST_SPLIT_PROGRAMS = 132, 96, 1600


def plans_for(n_out: int, n_in: int, rows: int, device: DeviceRecord) -> list[Plan]:
    """Triton plans worth measuring for a product on a device."""
    from aerie.kernels.triton_gpu.gemm_plan import Plan

    block_m = max(16, rows)
    tiles = [("dot", block_m, *tile) for tile in _DOT[block_m]]
    if rows <= 2:
        tiles += [("gemv", 0, *tile) for tile in _GEMV]
    found = []
    for kind, own_m, block_n, block_k, warps, stages in tiles:
        for splits in _SPLITS:
            plan = Plan(kind, block_n, block_k, own_m, splits, warps, stages)
            is_possible = plan.fits(n_out, n_in) and plan.shared_bytes <= device.shared_bytes
            if is_possible and _fills(n_out // block_n, splits, device.processors):
                found.append(plan)
    return found


def _fills(n_tiles: int, splits: int, processors: int) -> bool:
    n_programs = n_tiles * splits * _PROCESSORS // processors
    return n_programs >= _LEAST_PROGRAMS and (splits == 1 or n_programs <= _MOST_SPLIT_PROGRAMS)
