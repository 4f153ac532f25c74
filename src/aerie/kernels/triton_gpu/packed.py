"""Triton R18, a product with a weight of four-bit codes that are unpacked in registers.

Every program walks the inner axis in the order of `packed_walk.py`, in steps whose length follows
from the weight alone, and scales each step's sum into its total. Codes less their zeros are whole
numbers up to 15, which every dtype of rows holds exactly, so that nothing is rounded before the
sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.products import FourBits, step_of
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

LEAST_STEP = 32  # a half of it is the shortest inner axis of a matrix instruction

# Four bytes to eight 16-bit floats: each half byte is set into the last bits of a float so large
# that its last bit counts ones. Two codes an instruction; a conversion from integers runs at a
# quarter of that speed, one code each, and took two thirds of the loop.
_UNPACK = """{
    .reg .b32 first, second, high;
    prmt.b32 first, $4, 0, 0x4140;
    prmt.b32 second, $4, 0, 0x4342;
    lop3.b32 $0, first, 0x000f000f, ONES, 0xea;
    lop3.b32 $1, second, 0x000f000f, ONES, 0xea;
    shr.u32 high, first, 4;
    lop3.b32 $2, high, 0x000f000f, ONES, 0xea;
    shr.u32 high, second, 4;
    lop3.b32 $3, high, 0x000f000f, ONES, 0xea;
}"""
_TO_BFLOAT16 = tl.constexpr(_UNPACK.replace("ONES", "0x43004300"))  # 128 in either half
_TO_FLOAT16 = tl.constexpr(_UNPACK.replace("ONES", "0x64006400"))  # 1024
_ONE_BFLOAT16 = tl.constexpr(0x4300)
_ONE_FLOAT16 = tl.constexpr(0x6400)


@triton.jit
def _less_zero(both, zero, like, IN_BITS: tl.constexpr):
    """The codes of the low halves less their zeros, and those of the high halves."""
    if not IN_BITS:
        wide = both.to(tl.int16)
        low, high = ((wide & 15) - zero).to(like.dtype), ((wide >> 4) - zero).to(like.dtype)
    elif like.dtype == tl.bfloat16:
        low, high = tl.inline_asm_elementwise(
            _TO_BFLOAT16, "=r,=r,=r,=r,r", [both], (tl.bfloat16, tl.bfloat16), True, 4
        )
        large = (zero | _ONE_BFLOAT16).to(tl.bfloat16, bitcast=True)
        low, high = low - large, high - large
    else:
        low, high = tl.inline_asm_elementwise(
            _TO_FLOAT16, "=r,=r,=r,=r,r", [both], (tl.float16, tl.float16), True, 4
        )
        large = (zero | _ONE_FLOAT16).to(tl.float16, bitcast=True)
        low, high = low - large, high - large
    return low, high


@triton.jit
def _walk(
    x, codes, scales, zeros, row, column, first, n_rows, n_out, n_in, n_steps, steps_each, n_ahead,
    STEP: tl.constexpr, EVERY: tl.constexpr, SPREAD: tl.constexpr, IS_FULL: tl.constexpr,
    IN_BITS: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """The sums of steps from `first` on, [outputs, rows]; of every part, where they are spread."""
    HALF: tl.constexpr = STEP // 2
    BM: tl.constexpr = row.shape[0]
    inner = tl.arange(0, HALF)
    begin = steps_of(first, SPREAD)
    x_place = row.to(tl.int64)[None, :] * n_in + inner[:, None]
    x_at = x + each_part(x_place, SPREAD) + begin * STEP
    column_at = codes + each_part(column.to(tl.int64)[:, None] * (n_in // 2), SPREAD) + begin * HALF
    codes_at = column_at + each_part(inner[None, :], SPREAD)
    is_x = each_part((row < n_rows)[None, :], SPREAD)
    is_code = each_part((column < n_out)[:, None], SPREAD)
    if OVERLAP and IS_FULL:
        ask_ahead(column_at, n_ahead, LINES, SPREAD)
    next_scale = of_group(scales, first, column, n_steps, n_out, EVERY, SPREAD, IS_FULL)
    next_zero = of_group(zeros, first, column, n_steps, n_out, EVERY, SPREAD, IS_FULL)
    take_turn(OVERLAP)
    total = tl.expand_dims(tl.zeros_like(next_scale), -1) + tl.zeros([BM], tl.float32)
    for step in range(steps_each):
        scale, zero = next_scale, next_zero
        # A step ahead, for nothing else waits for them; two ahead, loads are no longer staged.
        after = first + step + 1
        next_scale = of_group(scales, after, column, n_steps, n_out, EVERY, SPREAD, IS_FULL)
        next_zero = of_group(zeros, after, column, n_steps, n_out, EVERY, SPREAD, IS_FULL)
        if IS_FULL:
            both = tl.load(codes_at + step * HALF, eviction_policy="evict_first")
            is_here = is_x
        else:
            is_step = begin + step < n_steps
            both = tl.load(codes_at + step * HALF, mask=is_code & is_step, other=0)
            is_here = is_x & is_step
        own = tl.load(x_at + step * STEP, mask=is_here, other=0.0)
        other = tl.load(x_at + step * STEP + HALF, mask=is_here, other=0.0)
        low, high = _less_zero(both, tl.expand_dims(zero.to(tl.int16), -1), own, IN_BITS)
        part = tl.dot(low, own, input_precision=PRECISION)
        part = tl.dot(high, other, part, input_precision=PRECISION)
        # Fused where it is written: two compilations must not round differently.
        total = tl.fma(part, tl.broadcast_to(tl.expand_dims(scale, -1), part.shape), total)
    return total


@triton.jit(do_not_specialize=("n_rows", "n_steps", "steps_each", "n_ahead"))
def _int4_kernel(
    x, codes, scales, zeros, bias, out, n_rows, n_out, n_in, n_steps, steps_each, n_ahead,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, EVERY: tl.constexpr,
    PARTS: tl.constexpr, SPREAD: tl.constexpr, IS_FULL: tl.constexpr, IN_BITS: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction, as in `gemm.py`."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    if SPREAD:
        sums = _walk(
            x, codes, scales, zeros, row, column, tl.arange(0, PARTS) * steps_each, n_rows, n_out,
            n_in, n_steps, steps_each, n_ahead,
            STEP, EVERY, SPREAD, IS_FULL, IN_BITS, PRECISION, OVERLAP, LINES,
        )  # fmt: skip
        total = in_order(sums)
    else:
        total = tl.zeros([BN, BM], tl.float32)
        for part in range(PARTS):
            total += _walk(
                x, codes, scales, zeros, row, column, part * steps_each, n_rows, n_out, n_in,
                n_steps, steps_each, n_ahead,
                STEP, EVERY, SPREAD, IS_FULL, IN_BITS, PRECISION, OVERLAP, LINES,
            )  # fmt: skip
    store_rows(total, out, bias, row, column, n_rows, n_out, HAS_BIAS)


def covers_int4(inputs: Mapping[str, Any]) -> bool:
    """Whether the steps of a weight are long enough for a matrix instruction."""
    return step_of(inputs["group_size"]) >= LEAST_STEP and multiplies(inputs["x"])


@takes_call
def multiply_int4(call: FourBits) -> dict[str, Tensor]:
    """R18: scale times code less zero, group by group."""
    (n_rows, n_in), n_out, step = call.x.shape, call.codes.shape[0], step_of(call.group_size)
    out = call.x.new_empty((n_rows, n_out))
    if n_rows:
        tile = tile_for(Product("multiply_int4", n_out, n_in, step), call.x)
        n_steps, parts = n_in // step, parts_of(n_in // step)
        steps_each = triton.cdiv(n_steps, parts)
        _int4_kernel[grid_of(tile, n_rows, n_out)](
            *contiguous(call.x, call.codes, call.scales, call.zeros),
            out if call.bias is None else call.bias.contiguous(), out, n_rows, n_out, n_in, n_steps,
            steps_each, STEP=step, EVERY=call.group_size // step,
            IS_FULL=n_out % tile.outputs == 0 and steps_each * parts == n_steps,
            # Where kernels are interpreted there are no instructions to write.
            IN_BITS=call.x.element_size() == 2 and not triton.knobs.runtime.interpret,
            HAS_BIAS=call.bias is not None,
            **options_of(tile, parts, steps_each * step // 2, call.x),
        )  # fmt: skip
    return {"y": out}
