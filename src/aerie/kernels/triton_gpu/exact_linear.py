"""Linear layers whose rows have the same bits whatever shares the batch.

A product that walks the inner axis once, in ascending order, leaves the same bits in the matrix
unit's accumulators whatever its tile: fifteen tiles of both matrix instructions and the library's
kernels without a split agreed in every bit at five shapes (H200, bfloat16). So a layer may take any
tile, and the library where it walks too: that is found out when a layer is made, for the library
chooses its kernel by the number of rows and says nothing of it. A row count whose product differs
in one bit from the walk, or that was not tried, is computed by the walk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from aerie.chips import record_of
from aerie.errors import UsageError
from aerie.kernels.triton_gpu.fused import gate
from aerie.kernels.triton_gpu.gemm import GemmScratch, gemm_scratch, product
from aerie.kernels.triton_gpu.gemm_plan import CUBLAS, GemmTable, Plan

# Numbers of rows that the library is tried with: those of verification, whose buckets stand closer,
# then of prompts. A verification of 96 rows by the walk took 8.3 ms where 128 took 7.3 by the
# library (H200, 2026-11).
TRIED = (1, 2, 4, 8, 16, 32, *range(64, 512, 16), *range(512, 4097, 64))
# Elements of a result that a trial may have: beyond, the library is not asked.
MOST_TRIED = 1 << 27
SEED = 20
# Tiles of the walk by rows. Of few rows a weight with few outputs wants narrow tiles, so that there
# are programs enough: 4096 x 14336 by one row took 30.7 µs in tiles of 16, 33 to 37 in wider ones,
# 31.8 by the library with the inner axis in parts (H200, 2026-11).
WALKS = (
    (16, Plan("dot", 64, 128, 16, 1, 4, 4)),
    (32, Plan("dot", 64, 128, 32, 1, 4, 6)),
    (64, Plan("dot", 64, 128, 64, 1, 4, 5)),
    (512, Plan("dot", 64, 64, 128, 1, 4, 6)),
    (1 << 30, Plan("dot", 128, 64, 128, 1, 8, 3)),
)
NARROW = Plan("dot", 16, 512, 16, 1, 2, 4)
NARROW_OUT = 4096
FEW_ROWS = 16  # up to so many the library was never faster


@dataclass(frozen=True)
class Ours:
    """Rows of a weight with few outputs for which a tile of ours beats the library's walk.

    The library leaves a wide inner axis in few programs unless it cuts it. Milliseconds of all
    products of an 8B forward, before and with it: 96 rows 5.93 and 5.17, 128 rows 5.67 and 5.32;
    512 rows, 4096 x 4096 alone, 12.73 and 12.45 (H200, 2026-11).
    """

    least: int
    most: int
    most_in: int
    plan: Plan

    def holds(self, n_out: int, n_in: int, n_rows: int) -> bool:
        """Whether it is for this product."""
        is_narrow = n_out <= NARROW_OUT and n_in <= self.most_in
        return is_narrow and self.least <= n_rows <= self.most


BEFORE_LIBRARY = (
    Ours(65, 128, 1 << 30, Plan("dot", 64, 128, 64, 1, 4, 4)),
    Ours(385, 512, 4096, Plan("dot", 128, 64, 128, 1, 8, 4)),
)
LEAST_BLOCK = 16


def walk_plan(n_out: int, n_in: int, n_rows: int, element_bytes: int = 2) -> Plan:
    """A tile that walks the inner axis once; an error for a weight that no tile divides."""
    plan = next(plan for most, plan in WALKS if n_rows <= most)
    if n_rows <= FEW_ROWS and n_out <= NARROW_OUT and n_in % NARROW.block_k == 0:
        plan = NARROW
    plan = next((own.plan for own in BEFORE_LIBRARY if own.holds(n_out, n_in, n_rows)), plan)
    if element_bytes == 4:  # no matrix unit: small tiles, and twice the bytes
        plan = Plan("dot", 32, 32, 32, 1, 4, 2)
    while n_out % plan.block_n and plan.block_n > LEAST_BLOCK:
        plan = replace(plan, block_n=plan.block_n // 2)
    while n_in % plan.block_k and plan.block_k > LEAST_BLOCK:
        plan = replace(plan, block_k=plan.block_k // 2)
    if not plan.fits(n_out, n_in):
        raise UsageError(
            f"exact numerics on a GPU need weights whose sides are multiples of {LEAST_BLOCK}, one"
            f" has {n_out} x {n_in}: use numerics fast"
        )
    return plan


@dataclass(frozen=True)
class Shape:
    """Of a weight, and whether something is added."""

    n_out: int
    n_in: int
    has_bias: bool


@dataclass(frozen=True, eq=False)
class ExactLinears:
    """What the layers of one stream share: counters, tuned tiles, and where the library walks."""

    scratch: GemmScratch
    table: GemmTable | None = None
    walked: dict[Shape, frozenset[int]] = field(default_factory=dict)

    def make(self, weight: Tensor, bias: Tensor | None) -> ExactLinear:
        """A layer over a stored weight; of the first of a shape the library is tried."""
        shape = Shape(weight.shape[0], weight.shape[1], bias is not None)
        layer = ExactLinear(weight, bias, self, shape)
        if shape not in self.walked:
            self.walked[shape] = _tried(layer)
        return layer

    def plan(self, shape: Shape, n_rows: int, element_bytes: int) -> Plan:
        """A tuned tile that walks, or the library where it does, or any tile that walks."""
        found = None if self.table is None else self.table.find(shape.n_out, shape.n_in, n_rows)
        if found is not None and found.kind == "dot" and found.splits == 1 and element_bytes == 2:
            return found
        is_ours = any(own.holds(shape.n_out, shape.n_in, n_rows) for own in BEFORE_LIBRARY)
        if n_rows > FEW_ROWS and not is_ours and n_rows in self.walked.get(shape, ()):
            return CUBLAS
        plan = walk_plan(shape.n_out, shape.n_in, n_rows, element_bytes)
        return plan.fitted(record_of(self.scratch.arrived.device))


@dataclass(frozen=True, eq=False)
class ExactLinear:
    """A dense layer by a walk along its inner axis."""

    weight: Tensor  # [n_out, n_in]
    bias: Tensor | None  # [n_out]
    exact: ExactLinears
    shape: Shape

    def __call__(self, x: Tensor) -> Tensor:
        """x times the weight's transpose, plus the bias. [rows, n_in] to [rows, n_out]"""
        if not x.shape[0]:
            return x.new_empty((0, self.shape.n_out))
        return self.by(self.exact.plan(self.shape, x.shape[0], x.element_size()), x)

    def gated(self, x: Tensor) -> Tensor:
        """Of two weights, one above the other: silu(first) times second. [rows, n_out / 2]"""
        if not x.shape[0]:
            return x.new_empty((0, self.shape.n_out // 2))
        plan = self.exact.plan(self.shape, x.shape[0], x.element_size())
        if plan == CUBLAS:
            return gate(*self.by(plan, x).tensor_split(2, dim=1))
        return product(x, self.weight, self.bias, plan, self.exact.scratch, is_gated=True)

    def by(self, plan: Plan, x: Tensor) -> Tensor:
        """The same by a given plan."""
        if plan == CUBLAS:
            return functional.linear(x, self.weight, self.bias)
        return product(x, self.weight, self.bias, plan, self.exact.scratch)


def _tried(layer: ExactLinear) -> frozenset[int]:
    """The numbers of rows at which the library's bits are the walk's; reads the device once.

    By random weights: those of a layer may be so sparse that no order of its sums shows.
    """
    shape, device = layer.shape, layer.weight.device
    counts = [n for n in TRIED if n * shape.n_out <= MOST_TRIED]
    if device.type != "cuda" or not counts:
        return frozenset()
    generator = torch.Generator(device).manual_seed(SEED)

    def random(*size: int) -> Tensor:
        drawn = torch.randn(size, device=device, generator=generator)
        return drawn.to(layer.weight.dtype)

    bias = random(shape.n_out) if shape.has_bias else None
    other = replace(layer, weight=random(shape.n_out, shape.n_in), bias=bias)
    x, size = random(counts[-1], shape.n_in), layer.weight.element_size()
    walk = walk_plan(shape.n_out, shape.n_in, counts[-1], size).fitted(record_of(device))
    want = other.by(walk, x)
    same = [(other.by(CUBLAS, x[:n]) == want[:n]).all() for n in counts]
    found = torch.stack(same).tolist()
    return frozenset(n for n, is_same in zip(counts, found, strict=True) if is_same)


def exact_linears(device: torch.device | str, table: GemmTable | None = None) -> ExactLinears:
    """Ready for the layers of one model that runs on one stream."""
    own = None if table is None else table.fitted(record_of(torch.device(device)))
    return ExactLinears(gemm_scratch(device), own)
