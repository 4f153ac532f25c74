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
from aerie.kernels.call import takes_call
from aerie.kernels.cards.products import WIDEST_STEP, EightBits, step_of
from aerie.kernels.triton_gpu.launch import contiguous
from aerie.kernels.triton_gpu.overlap import take_turn
from aerie.kernels.triton_gpu.packed_plan import Product, parts_of, tile_for
from aerie.kernels.triton_gpu.packed_walk import (
    ask_ahead,
    each_part,
    grid_of,
    in_order,
    multiplies,
    of_group,
    options_of,
    steps_of,
    store_rows,
)

LEAST_STEP = 16  # the shortest inner axis of a matrix instruction
KNOWS_FP8 = 89  # capability from which on a chip converts e4m3


@triton.jit
def widened(codes, NATIVE: tl.constexpr):
    """e4m3 bits as float32: exponents are biased by 7, the least one has no hidden bit."""
    if NATIVE:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    bits = codes.to(tl.int32)
    size = bits & 127
    normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    return tl.where(bits > 127, -value, value)


@triton.jit
def _walk(
    x, codes, scales, row, column, first, n_rows, n_out, n_in, n_steps, steps_each, n_ahead,
    STEP: tl.constexpr, EVERY: tl.constexpr, SPREAD: tl.constexpr, IS_FULL: tl.constexpr,
    NATIVE: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """The sums of steps from `first` on, [outputs, rows]; of every part, where they are spread."""
    BM: tl.constexpr = row.shape[0]
    inner = tl.arange(0, STEP)
    begin = steps_of(first, SPREAD)
    x_place = row.to(tl.int64)[None, :] * n_in + inner[:, None]
    x_at = x + each_part(x_place, SPREAD) + begin * STEP
    column_at = codes + each_part(column.to(tl.int64)[:, None] * n_in, SPREAD) + begin * STEP
    codes_at = column_at + each_part(inner[None, :], SPREAD)
    is_x = each_part((row < n_rows)[None, :], SPREAD)
    is_code = each_part((column < n_out)[:, None], SPREAD)
    if OVERLAP and IS_FULL:
        ask_ahead(column_at, n_ahead, LINES, SPREAD)
    next_scale = of_group(scales, first, column, n_steps, n_out, EVERY, SPREAD, IS_FULL)
    take_turn(OVERLAP)
    total = tl.expand_dims(tl.zeros_like(next_scale), -1) + tl.zeros([BM], tl.float32)
    for step in range(steps_each):
        # A step ahead, as in `packed.py`.
        scale, after = next_scale, first + step + 1
        next_scale = of_group(scales, after, column, n_steps, n_out, EVERY, SPREAD, IS_FULL)
        if IS_FULL:
            held = tl.load(codes_at + step * STEP, eviction_policy="evict_first")
            own = tl.load(x_at + step * STEP, mask=is_x, other=0.0)
        else:
            left = n_in - (begin + step) * STEP
            is_in, is_below = each_part(inner[None, :], SPREAD), each_part(inner[:, None], SPREAD)
            held = tl.load(codes_at + step * STEP, mask=is_code & (is_in < left), other=0)
            own = tl.load(x_at + step * STEP, mask=is_x & (is_below < left), other=0.0)
        part = tl.dot(widened(held, NATIVE).to(own.dtype), own, input_precision=PRECISION)
        # Fused where it is written: two compilations must not round differently.
        total = tl.fma(part, tl.broadcast_to(tl.expand_dims(scale, -1), part.shape), total)
    return total


@triton.jit(do_not_specialize=("n_rows", "n_steps", "steps_each", "n_ahead"))
def _fp8_kernel(
    x, codes, scales, bias, out, n_rows, n_out, n_in, n_steps, steps_each, n_ahead,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, EVERY: tl.constexpr,
    PARTS: tl.constexpr, SPREAD: tl.constexpr, IS_FULL: tl.constexpr, NATIVE: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    if SPREAD:
        sums = _walk(
            x, codes, scales, row, column, tl.arange(0, PARTS) * steps_each, n_rows, n_out, n_in,
            n_steps, steps_each, n_ahead,
            STEP, EVERY, SPREAD, IS_FULL, NATIVE, PRECISION, OVERLAP, LINES,
        )  # fmt: skip
        total = in_order(sums)
    else:
        total = tl.zeros([BN, BM], tl.float32)
        for part in range(PARTS):
            total += _walk(
                x, codes, scales, row, column, part * steps_each, n_rows, n_out, n_in, n_steps,
                steps_each, n_ahead,
                STEP, EVERY, SPREAD, IS_FULL, NATIVE, PRECISION, OVERLAP, LINES,
            )  # fmt: skip
    store_rows(total, out, bias, row, column, n_rows, n_out, HAS_BIAS)


def covers_fp8(inputs: Mapping[str, Any]) -> bool:
    """Whether a group holds whole steps that are long enough for a matrix instruction."""
    return step_of(inputs["group_size"]) >= LEAST_STEP and multiplies(inputs["x"])


@takes_call
def multiply_fp8(call: EightBits) -> dict[str, Tensor]:
    """R19: scale times eight-bit float, group by group."""
    (n_rows, n_in), n_out, step = call.x.shape, call.codes.shape[0], step_of(call.group_size)
    out = call.x.new_empty((n_rows, n_out))
    if n_rows:
        tile = tile_for(Product("multiply_fp8", n_out, n_in, WIDEST_STEP), call.x)
        n_steps = triton.cdiv(n_in, step)
        parts = parts_of(n_steps)
        steps_each = triton.cdiv(n_steps, parts)
        _fp8_kernel[grid_of(tile, n_rows, n_out)](
            *contiguous(call.x, call.codes, call.scales),
            out if call.bias is None else call.bias.contiguous(), out, n_rows, n_out, n_in, n_steps,
            steps_each, STEP=step, EVERY=call.group_size // step,
            IS_FULL=n_out % tile.outputs == 0 and steps_each * parts * step == n_in,
            NATIVE=record_of(call.x.device).capability >= KNOWS_FP8,
            HAS_BIAS=call.bias is not None, **options_of(tile, parts, steps_each * step, call.x),
        )  # fmt: skip
    return {"y": out}
