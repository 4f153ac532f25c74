"""Triton R19, a product with a weight of eight-bit floats that are widened in registers.

A walk along the inner axis as in `packed.py`. Every e4m3 float is one of bfloat16 and of float16,
so that nothing is rounded before the sums. Chips that know eight-bit floats convert them, others
put their bits together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from aerie.chips import record_of
from aerie.kernels.cards.products import WIDEST_STEP, step_of
from aerie.kernels.triton_gpu.overlap import take_turn
from aerie.kernels.triton_gpu.packed import grid_of, multiplies, options_of, store_rows
from aerie.kernels.triton_gpu.packed_plan import tile_for

LEAST_STEP = 16  # the shortest inner axis of a matrix instruction
KNOWS_FP8 = 89  # capability from which on a chip converts e4m3


@triton.jit
def _widened(codes, NATIVE: tl.constexpr):
    """e4m3 bits as float32: exponents are biased by 7, the least one has no hidden bit."""
    if NATIVE:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    bits = codes.to(tl.int32)
    size = bits & 127
    normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    return tl.where(bits > 127, -value, value)


@triton.jit(do_not_specialize=("n_rows",))
def _fp8_kernel(
    x, codes, scales, bias, out, n_rows, n_out, n_in, group_size,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, IS_FULL: tl.constexpr,
    NATIVE: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction."""
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    inner = tl.arange(0, STEP)
    is_column = column < n_out
    is_row = row < n_rows
    x_at = x + row.to(tl.int64)[None, :] * n_in + inner[:, None]
    codes_at = codes + column.to(tl.int64)[:, None] * n_in + inner[None, :]
    take_turn(OVERLAP)
    total = tl.zeros([BN, BM], tl.float32)
    for first in range(0, n_in, STEP):
        scale = tl.load(scales + first // group_size * n_out + column, mask=is_column, other=0.0)
        is_code, is_x = is_column[:, None], is_row[None, :]
        if not IS_FULL:
            is_code &= (first + inner < n_in)[None, :]
            is_x &= (first + inner < n_in)[:, None]
        held = tl.load(codes_at + first, mask=is_code, other=0, eviction_policy="evict_first")
        own = tl.load(x_at + first, mask=is_x, other=0.0)
        weight = _widened(held, NATIVE).to(own.dtype)
        part = tl.dot(weight, own, input_precision=PRECISION)
        # Fused where it is written: two compilations must not round differently.
        total = tl.fma(part, tl.broadcast_to(scale[:, None], [BN, BM]), total)
    store_rows(total, out, bias, row, column, n_rows, n_out, HAS_BIAS)


def covers_fp8(inputs: Mapping[str, Any]) -> bool:
    """Whether a group holds whole steps that are long enough for a matrix instruction."""
    return step_of(inputs["group_size"]) >= LEAST_STEP and multiplies(inputs["x"])


def multiply_fp8(
    *, x: Tensor, codes: Tensor, scales: Tensor, group_size: int, bias: Tensor | None = None
) -> dict[str, Tensor]:
    """R19: scale times eight-bit float, group by group."""
    (n_rows, n_in), n_out, step = x.shape, codes.shape[0], step_of(group_size)
    out = x.new_empty((n_rows, n_out))
    if n_rows:
        tile = tile_for(n_rows, n_out, WIDEST_STEP, x)
        _fp8_kernel[grid_of(tile, n_rows, n_out)](
            x.contiguous(), codes.contiguous(), scales.contiguous(),
            out if bias is None else bias.contiguous(), out, n_rows, n_out, n_in, group_size,
            STEP=step, IS_FULL=n_in % step == 0, NATIVE=record_of(x.device).capability >= KNOWS_FP8,
            HAS_BIAS=bias is not None, **options_of(tile, x),
        )  # fmt: skip
    return {"y": out}
