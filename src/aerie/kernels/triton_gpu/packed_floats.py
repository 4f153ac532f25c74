"""Triton R19, a product with a weight of eight-bit floats that are widened in registers.

A walk along the inner axis as in `packed.py`. Every e4m3 float is one of bfloat16 and of float16,
so that nothing is rounded before the sums. Chips that know eight-bit floats convert them, others
put their bits together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from aerie.chips import record_of
from aerie.kernels.call import takes_call
from aerie.kernels.cards.products import WIDEST_STEP, EightBits, step_of
from aerie.kernels.triton_gpu.launch import contiguous
from aerie.kernels.triton_gpu.overlap import take_turn
from aerie.kernels.triton_gpu.packed_lanes import (
    add_scaled,
    codes_in_order,
    lane_codes,
    lane_columns,
    lane_group,
    lane_groups_at,
    lane_last,
    lane_load,
    lane_rows,
    lane_rows_at,
    lane_tile,
    lane_words,
    lane_words_at,
    no_steps,
    rows_in_order,
)
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
from aerie.kernels.triton_gpu.packed_words import widened_words
from aerie.kernels.triton_gpu.unpack_floats import widened

LEAST_STEP = 16  # the shortest inner axis of a matrix instruction
KNOWS_FP8 = 89  # capability from which on a chip converts e4m3


@triton.jit
def _walk(
    x, codes, scales, row, column, first, n_rows, n_out, n_in, n_steps, steps_each, n_ahead,
    STEP: tl.constexpr, EVERY: tl.constexpr, SPREAD: tl.constexpr, IS_FULL: tl.constexpr,
    NATIVE: tl.constexpr, IN_ORDER: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr,
    LINES: tl.constexpr,
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
        floats = widened(held, NATIVE).to(own.dtype)
        if IN_ORDER:
            floats, own = codes_in_order(floats), rows_in_order(own)
        part = tl.dot(floats, own, input_precision=PRECISION)
        # Fused where it is written: two compilations must not round differently.
        total = tl.fma(part, tl.broadcast_to(tl.expand_dims(scale, -1), part.shape), total)
    return total


@triton.jit
def _add_step(
    total, held, scale, x_at, step, n_steps,
    STEP: tl.constexpr, IS_FULL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """The total and what the floats of one step of every part add to it."""
    BM: tl.constexpr = 8 * total.shape[3]
    if IS_FULL:
        own = tl.load(x_at)
    else:
        is_step = (step < n_steps)[None, None, None, :, None, None, None]
        own = tl.load(x_at, mask=is_step, other=0.0)
    floats = widened_words(lane_words(held), own, NATIVE)
    part = tl.dot(lane_codes(floats, STEP), lane_rows(own, BM, STEP))
    return add_scaled(total, part, scale)


@triton.jit
def _walk_lanes(
    x, codes, scales, n_rows, n_out, n_in, n_steps, steps_each, pitch,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, EVERY: tl.constexpr,
    PARTS: tl.constexpr, AHEAD: tl.constexpr, IS_FULL: tl.constexpr, NATIVE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """The sums of all parts [8, outputs, rows], of codes that go to no other lane."""
    column, first = lane_columns(BN), tl.arange(0, PARTS) * steps_each
    WORDS: tl.constexpr = STEP // 4
    words_at = lane_words_at(codes, column, n_in // 16, first, WORDS)
    scales_at = lane_groups_at(scales, pitch, BN)
    x_at = lane_rows_at(x, n_rows, n_in, first * STEP, BM, STEP)
    last = lane_last(column, first, n_steps, steps_each, n_out, IS_FULL)
    held, scale = no_steps(), no_steps()
    for ahead in tl.static_range(AHEAD):  # weights, which need not wait for a turn
        held += (lane_load(words_at + ahead * WORDS, ahead, last, 0, IS_FULL),)
        scale += (lane_group(scales_at, first, ahead, n_out, last, 0, EVERY, IS_FULL),)
    take_turn(OVERLAP)
    total = tl.zeros([PARTS, BN // 8, 8, BM // 8, 4, 2], tl.float32)
    for begin in tl.range(0, steps_each, AHEAD, num_stages=1):
        next_held, next_scale = no_steps(), no_steps()
        for ahead in tl.static_range(AHEAD):
            step = begin + ahead
            total = _add_step(
                total, held[ahead], scale[ahead], x_at + ahead * STEP, first + step, n_steps,
                STEP, IS_FULL, NATIVE,
            )  # fmt: skip
            # Into the registers of what was multiplied; beyond the last step they stay as they are.
            step += AHEAD
            words_next = words_at + (AHEAD + ahead) * WORDS
            next_held += (lane_load(words_next, step, last, held[ahead], False),)
            next_scale += (
                lane_group(scales_at, first, step, n_out, last, scale[ahead], EVERY, False),
            )
        held, scale = next_held, next_scale
        words_at += AHEAD * WORDS
        x_at += AHEAD * STEP
    return tl.reshape(total, (PARTS, BN, BM))


@triton.jit(do_not_specialize=("n_rows", "n_steps", "steps_each", "n_ahead", "pitch"))
def _fp8_kernel(
    x, codes, scales, bias, out, n_rows, n_out, n_in, n_steps, steps_each, n_ahead, pitch,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, EVERY: tl.constexpr,
    PARTS: tl.constexpr, SPREAD: tl.constexpr, AHEAD: tl.constexpr, IS_FULL: tl.constexpr,
    NATIVE: tl.constexpr, IN_ORDER: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    if AHEAD:
        sums = _walk_lanes(
                x,
                codes,
                scales,
                n_rows,
                n_out,
                n_in,
                n_steps,
                steps_each,
                pitch,
                BM,
                BN,
                STEP,
                EVERY,
                PARTS,
                AHEAD,
                IS_FULL,
                NATIVE,
                OVERLAP,
        )  # fmt: skip
        total = in_order(sums)
    elif SPREAD:
        sums = _walk(
            x, codes, scales, row, column, tl.arange(0, PARTS) * steps_each, n_rows, n_out, n_in,
            n_steps, steps_each, n_ahead,
            STEP, EVERY, SPREAD, IS_FULL, NATIVE, IN_ORDER, PRECISION, OVERLAP, LINES,
        )  # fmt: skip
        total = in_order(sums)
    else:
        total = tl.zeros([BN, BM], tl.float32)
        for part in range(PARTS):
            total += _walk(
                x, codes, scales, row, column, part * steps_each, n_rows, n_out, n_in, n_steps,
                steps_each, n_ahead,
                STEP, EVERY, SPREAD, IS_FULL, NATIVE, IN_ORDER, PRECISION, OVERLAP, LINES,
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
        product = Product("multiply_fp8", n_out, n_in, WIDEST_STEP)
        tile = tile_for(product, call.x)
        n_steps = triton.cdiv(n_in, step)
        parts = parts_of(n_steps)
        steps_each = triton.cdiv(n_steps, parts)
        x, codes, scales = contiguous(call.x, call.codes, call.scales)
        tile, ahead = lane_tile(tile, replace(product, step=step), steps_each, x, codes)
        _fp8_kernel[grid_of(tile, n_rows, n_out)](
            x, codes, scales,
            out if call.bias is None else call.bias.contiguous(), out, n_rows, n_out, n_in, n_steps,
            steps_each, pitch=1, AHEAD=ahead, STEP=step, EVERY=call.group_size // step,
            IS_FULL=n_out % tile.outputs == 0 and steps_each * parts * step == n_in,
            NATIVE=record_of(call.x.device).capability >= KNOWS_FP8,
            IN_ORDER=call.x.element_size() == 2, HAS_BIAS=call.bias is not None,
            **options_of(tile, parts, steps_each * step, call.x),
        )  # fmt: skip
    return {"y": out}
