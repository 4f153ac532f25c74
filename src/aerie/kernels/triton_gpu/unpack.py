"""Triton R28 and R29: packed weights written out, for products of so many rows that it pays.

A program takes some outputs and some steps of a weight (`kernels.cards.products.step_of`); within a
step there is one scale for each output. Codes and scales are weights, so they are read before the
kernel's turn; nothing is written before it. Scales may be columns of a larger array: a layer is
unpacked some outputs at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from aerie.chips import record_of
from aerie.kernels.call import takes_call
from aerie.kernels.cards.products import UnpackedEightBits, UnpackedFourBits, step_of
from aerie.kernels.triton_gpu.launch import packed, row_stride
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn
from aerie.kernels.triton_gpu.packed_floats import KNOWS_FP8, widened
from aerie.kernels.triton_gpu.packed_walk import multiplies

OUTPUTS = 16  # of a program
BYTES = 256  # codes of each that it reads at once


@triton.jit
def _of_steps(array, output, step, stride, n_out, n_steps, EVERY: tl.constexpr):
    """What the groups of some steps say of some outputs. [outputs, steps, 1]"""
    at = (step // EVERY)[None, :] * stride + output[:, None]
    is_here = (output < n_out)[:, None] & (step < n_steps)[None, :]
    # Read with two axes: of a third, the compiler would have every element read by itself.
    return tl.expand_dims(tl.load(array + at, mask=is_here, other=0), 2)


@triton.jit
def _unpack_int4_kernel(
    codes, scales, zeros, weight, n_out, n_bytes, n_steps, scale_stride, zero_stride, weight_stride,
    BN: tl.constexpr, STEPS: tl.constexpr, STEP: tl.constexpr, EVERY: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Both halves of every byte, each to where its codes stand."""
    HALF: tl.constexpr = STEP // 2
    output = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.program_id(0) * STEPS + tl.arange(0, STEPS)
    inner = tl.arange(0, HALF)[None, None, :]
    is_here = (output < n_out)[:, None, None] & (step < n_steps)[None, :, None]
    row = output.to(tl.int64)[:, None, None]
    place = row * n_bytes + step[None, :, None] * HALF + inner
    both = tl.load(codes + place, mask=is_here, other=0, eviction_policy="evict_first")
    scale = _of_steps(scales, output, step, scale_stride, n_out, n_steps, EVERY)
    zero = _of_steps(zeros, output, step, zero_stride, n_out, n_steps, EVERY)
    low = ((both & 15).to(tl.int32) - zero.to(tl.int32)).to(tl.float32) * scale
    high = ((both >> 4).to(tl.int32) - zero.to(tl.int32)).to(tl.float32) * scale
    at = weight + row * weight_stride + step[None, :, None] * STEP + inner
    take_turn(OVERLAP)
    tl.store(at, low.to(weight.dtype.element_ty), mask=is_here)
    tl.store(at + HALF, high.to(weight.dtype.element_ty), mask=is_here)


@triton.jit
def _unpack_fp8_kernel(
    codes, scales, weight, n_out, n_in, n_steps, scale_stride, weight_stride,
    BN: tl.constexpr, STEPS: tl.constexpr, STEP: tl.constexpr, EVERY: tl.constexpr,
    NATIVE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Floats where they stand; the last step may be a part of one."""
    output = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.program_id(0) * STEPS + tl.arange(0, STEPS)
    inner = step[None, :, None] * STEP + tl.arange(0, STEP)[None, None, :]
    is_here = (output < n_out)[:, None, None] & (inner < n_in)
    row = output.to(tl.int64)[:, None, None]
    held = tl.load(codes + row * n_in + inner, mask=is_here, other=0, eviction_policy="evict_first")
    scale = _of_steps(scales, output, step, scale_stride, n_out, n_steps, EVERY)
    value = widened(held, NATIVE) * scale
    take_turn(OVERLAP)
    at = weight + row * weight_stride + inner
    tl.store(at, value.to(weight.dtype.element_ty), mask=is_here)


def covers(inputs: Mapping[str, Any]) -> bool:
    """Everything on a GPU; the interpreter cuts off what a bfloat16 has no room for."""
    return multiplies(inputs["weight"])


@takes_call
def unpack_int4(call: UnpackedFourBits) -> dict[str, Tensor]:
    """R28: the weight of R18, in the dtype of what it is written to."""
    if not call.weight.shape[0]:
        return {}
    (n_out, n_bytes), step = call.codes.shape, step_of(call.group_size)
    n_steps, steps = 2 * n_bytes // step, max(1, 2 * BYTES // step)
    scales, zeros = packed(call.scales), packed(call.zeros)
    _unpack_int4_kernel[(triton.cdiv(n_steps, steps), triton.cdiv(n_out, OUTPUTS))](
        call.codes.contiguous(), scales, zeros, call.weight, n_out, n_bytes, n_steps,
        scales.stride(0), zeros.stride(0), row_stride(call.weight), BN=OUTPUTS, STEPS=steps,
        STEP=step, EVERY=call.group_size // step, **overlapped(call.weight),
    )  # fmt: skip
    return {}


@takes_call
def unpack_fp8(call: UnpackedEightBits) -> dict[str, Tensor]:
    """R29: the weight of R19, in the dtype of what it is written to."""
    if not call.weight.shape[0]:
        return {}
    (n_out, n_in), step = call.codes.shape, step_of(call.group_size)
    n_steps, steps = triton.cdiv(n_in, step), max(1, BYTES // step)
    scales = packed(call.scales)
    _unpack_fp8_kernel[(triton.cdiv(n_steps, steps), triton.cdiv(n_out, OUTPUTS))](
        call.codes.contiguous(), scales, call.weight, n_out, n_in, n_steps, scales.stride(0),
        row_stride(call.weight), BN=OUTPUTS, STEPS=steps, STEP=step, EVERY=call.group_size // step,
        NATIVE=record_of(call.weight.device).capability >= KNOWS_FP8, **overlapped(call.weight),
    )  # fmt: skip
    return {}
