"""Plans of products: what is tried, and the stack of a whole forward they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aerie.bench.turns import device_seconds

if TYPE_CHECKING:
    from aerie.chips import DeviceRecord
    from aerie.kernels.triton_gpu.gemm_plan import Key, Plan

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
REPLAYS, QUICK_REPLAYS = 9, 5
LEAST_GAIN = 0.001  # of the stack's time: below, the plan that was best by itself stays


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
    others: tuple[tuple[Plan, float], ...] = ()  # nearly as fast by themselves: with their times

    def by(self, plan: Plan, us: float) -> Tuned:
        """The same shape by one of the others."""
        return replace(self, plan=plan, us=us, gbps=round(self.gbps * self.us / us, 1))


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


def multiply(plan: Plan, x: Tensor, weight: Tensor, scratch: Any) -> Tensor:
    """One product."""
    from aerie.kernels.triton_gpu.gemm import product

    if plan.kind == "cublas":
        return torch.nn.functional.linear(x, weight)
    return product(x, weight, None, plan, scratch)


def median_seconds(
    walks: Sequence[Sequence[tuple[Plan, Tensor, Tensor]]], scratch: Any, replays: int
) -> list[float]:
    """Of each walk over products of rows and weights, replayed in turns.

    Before each product stands a gate, as small kernels of a layer do.
    """
    from aerie.kernels.triton_gpu.fused import gate

    def walk(products: Sequence[tuple[Plan, Tensor, Tensor]]) -> None:
        for plan, x, weight in products:
            multiply(plan, gate(x, x), weight, scratch)

    spans = device_seconds([partial(walk, products) for products in walks], replays)
    return [statistics.median(own) for own in spans]


@dataclass(frozen=True)
class StackTime:
    """Milliseconds of all products of one forward, and the share of copy bandwidth."""

    rows: int
    bytes: int
    cublas_ms: float
    tuned_ms: float
    cublas_share: float
    tuned_share: float


@dataclass(frozen=True, eq=False)
class Stack:
    """Random weights of a forward in the order of its layers, far larger than the cache."""

    order: Sequence[Shape]
    weights: Sequence[Tensor]
    scratch: Any

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> Stack:
        """Every layer of a forward."""
        from aerie.kernels.triton_gpu.gemm import gemm_scratch

        n_layers = max((shape.per_forward for shape in shapes), default=0)
        order = [s for layer in range(n_layers) for s in shapes if layer < s.per_forward]
        empty = partial(torch.empty, dtype=torch.bfloat16, device="cuda")
        weights = [empty(s.n_out, s.n_in).normal_(std=0.02) for s in order]
        return cls(order, weights, gemm_scratch("cuda"))

    def times(self, choices: Sequence[Mapping[str, Tuned]], rows: int, replays: int) -> list[float]:
        """Median milliseconds of each choice of plans by the names of shapes."""
        inputs = {s.n_in: torch.randn(rows, s.n_in, device="cuda").bfloat16() for s in self.order}
        walks = [
            [
                (chosen[s.name].plan, inputs[s.n_in], weight)
                for s, weight in zip(self.order, self.weights, strict=True)
            ]
            for chosen in choices
        ]
        return [1e3 * seconds for seconds in median_seconds(walks, self.scratch, replays)]


def refine(stack: Stack, tuned: Sequence[Tuned], copy_gbps: float) -> tuple[list[Tuned], StackTime]:
    """The plans of all shapes at one number of rows chosen anew, one shape after the other."""
    from aerie.kernels.triton_gpu.gemm_plan import CUBLAS

    names = {(shape.n_out, shape.n_in): shape.name for shape in stack.order}
    chosen, rows = {names[t.key.n_out, t.key.n_in]: t for t in tuned}, tuned[0].key.rows
    for name, entry in list(chosen.items()):
        tried = [entry, *(entry.by(*other) for other in entry.others)]
        spans = stack.times([{**chosen, name: other} for other in tried], rows, QUICK_REPLAYS)
        best = min(range(len(tried)), key=lambda index: spans[index])
        if spans[best] < spans[0] * (1 - LEAST_GAIN):
            chosen[name] = tried[best]
    library = {name: replace(entry, plan=CUBLAS) for name, entry in chosen.items()}
    times = stack.times([library, chosen], rows, REPLAYS)
    n_bytes = sum(shape.bytes for shape in stack.order)
    shares = [n_bytes / ms / 1e6 / copy_gbps for ms in times]
    return list(chosen.values()), StackTime(rows, n_bytes, *times, *shares)


def refine_all(
    shapes: Sequence[Shape], tuned: Sequence[Tuned], copy_gbps: float, say: Callable[[str], None]
) -> tuple[list[Tuned], list[StackTime]]:
    """Every number of rows at which the whole stack was tuned; the rest stays as it is."""
    of_stack = {(shape.n_out, shape.n_in) for shape in shapes if shape.per_forward}
    found, times = {entry.key: entry for entry in tuned}, []
    stack = Stack.of(shapes)
    for rows in dict.fromkeys(entry.key.rows for entry in tuned):
        own = [t for t in tuned if t.key.rows == rows and (t.key.n_out, t.key.n_in) in of_stack]
        if not own or len(own) < len(of_stack):
            continue
        chosen, time = refine(stack, own, copy_gbps)
        times.append(time)
        changed = [new for old, new in zip(own, chosen, strict=True) if new.plan != old.plan]
        found |= {entry.key: entry for entry in changed}
        say(
            f"stack x{rows:<4} cublas {time.cublas_ms:.3f} ms ({time.cublas_share:.3f} of copy)"
            f"  tuned {time.tuned_ms:.3f} ms ({time.tuned_share:.3f}), {len(changed)} plans changed"
        )
        for entry in changed:
            say(f"    {entry.key}: {entry.plan}")
    return list(found.values()), times
