"""Triton R27, a product of rows and a weight that are both in eight bits: for drafts.

Two launches. The first rounds each row, the second reads half the bytes of a weight in bfloat16 and
multiplies them as they are. Hopper's matrix unit adds eight-bit products to fourteen bits; a kernel
may ask it to hand its sums over every so many inputs, which takes time, and drafts are verified
anyway: this one asks for nothing. Rows in float32, and all rows on chips without such a unit,
are multiplied by codes widened to float16, which holds every e4m3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl

from aerie.chips import DeviceRecord, record_of
from aerie.kernels.call import takes_call
from aerie.kernels.cards.products import MOST_EXPONENT, EightBitRows
from aerie.kernels.triton_gpu.launch import block, contiguous
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn
from aerie.kernels.triton_gpu.packed_floats import KNOWS_FP8, widened
from aerie.kernels.triton_gpu.packed_walk import AHEAD_EACH, AHEAD_LINES, ask_ahead, store_rows

MOST_AT_ONCE = 16384  # entries of a row that one program holds
WIDENED_INPUTS = 64  # of a step
_BIAS = tl.constexpr(127)  # of a float32's exponent
_MOST = tl.constexpr(MOST_EXPONENT)
_LEAST_NORMAL = tl.constexpr(121 << 23)  # bits of 2^-6, the least e4m3 with a hidden bit
# What moves the least bit of an e4m3 below that, 2^-9, to the last one of a float32, and its bits.
_SHIFT, _SHIFT_BITS = tl.constexpr(16384.0), tl.constexpr(0x46800000)


@dataclass(frozen=True)
class Tile:
    """Rows and outputs of a program, inputs of a step, and how it is compiled."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int

    def shared_bytes(self, is_widened: bool) -> int:
        """Shared memory at most: codes of every stage; widened ones lie there once more."""
        step = (self.rows + self.outputs) * self.inputs
        return step * (self.stages + 2 * is_widened)

    def fitted(self, device: DeviceRecord, is_widened: bool) -> Tile:
        """With as few stages less, then as few inputs of a step, as the device asks for."""
        # Widened, they pass through registers.
        tile = replace(self, inputs=WIDENED_INPUTS) if is_widened else self
        while tile.shared_bytes(is_widened) > device.shared_bytes:
            if tile.stages > 2:
                tile = replace(tile, stages=tile.stages - 1)
            else:
                tile = replace(tile, inputs=tile.inputs // 2)
        return tile


# By rows, the fastest of those that were tried (H200, 2026-11).
TILES = (
    (16, Tile(16, 64, 256, 4, 5)),
    (32, Tile(32, 64, 256, 4, 4)),
    (64, Tile(64, 64, 256, 4, 4)),
    (1 << 30, Tile(128, 128, 128, 8, 4)),
)


@triton.jit
def _nearest(values):
    """Bits of the nearest e4m3, of two as near the even one; values are at most 448."""
    bits = values.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - ((_BIAS - 7) << 3)
    small = (tl.abs(values) + _SHIFT).to(tl.int32, bitcast=True) - _SHIFT_BITS
    return (tl.where(size < _LEAST_NORMAL, small, normal) | ((bits >> 24) & 128)).to(tl.uint8)


@triton.jit
def _fp8_round_kernel(x, near, row_scales, n_in, H: tl.constexpr, OVERLAP: tl.constexpr):
    """One row: its largest value, the power of two that follows, its nearest floats."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, H)
    take_turn(OVERLAP)
    own = tl.load(x + row * n_in + lane, mask=lane < n_in, other=0.0).to(tl.float32)
    most = tl.abs(own)
    for start in range(H, n_in, H):
        more = tl.load(x + row * n_in + start + lane, mask=start + lane < n_in, other=0.0)
        most = tl.maximum(most, tl.abs(more.to(tl.float32)))
    largest = tl.max(most, axis=0).to(tl.int32, bitcast=True)
    # Up to 1.75 * 2^8, which is 448, nothing is carried into the exponent.
    exponent = ((largest + 0x1FFFFF) >> 23) - (_BIAS + 8)
    exponent = tl.where(largest == 0, 0, tl.maximum(tl.minimum(exponent, _MOST), -_MOST))
    tl.store(row_scales + row, ((exponent + _BIAS) << 23).to(tl.float32, bitcast=True))
    inverse = ((-exponent + _BIAS) << 23).to(tl.float32, bitcast=True)
    tl.store(near + row * n_in + lane, _nearest(own * inverse), mask=lane < n_in)
    for start in range(H, n_in, H):
        more = tl.load(x + row * n_in + start + lane, mask=start + lane < n_in, other=0.0)
        codes = _nearest(more.to(tl.float32) * inverse)
        tl.store(near + row * n_in + start + lane, codes, mask=start + lane < n_in)


@triton.jit
def _loaded(at, is_here, NATIVE: tl.constexpr, IS_FULL: tl.constexpr, POLICY: tl.constexpr):
    """Eight-bit floats from their bits; `is_here` may be left out where `IS_FULL`."""
    if NATIVE:  # of pointers: what is loaded as integers passes through registers
        at = at.to(tl.pointer_type(tl.float8e4nv), bitcast=True)
    if IS_FULL:
        found = tl.load(at, eviction_policy=POLICY)
    else:
        found = tl.load(at, mask=is_here, other=0.0, eviction_policy=POLICY)
    if NATIVE:
        floats = found
    else:
        floats = widened(found, False).to(tl.float16)
    return floats


@triton.jit(do_not_specialize=("n_rows", "n_ahead"))
def _fp8_rows_kernel(
    near, row_scales, codes, scales, bias, out, n_rows, n_out, n_in, n_ahead,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, IS_FULL: tl.constexpr,
    NATIVE: tl.constexpr, HAS_BIAS: tl.constexpr, LINES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction, as in `gemm.py`."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    column_at = codes + column.to(tl.int64)[:, None] * n_in
    if OVERLAP and IS_FULL:
        ask_ahead(column_at, n_ahead, LINES, False)
    scale = tl.load(scales + column, mask=column < n_out, other=0.0)
    take_turn(OVERLAP)
    row_scale = tl.load(row_scales + row, mask=row < n_rows, other=0.0)
    near_at = near + row.to(tl.int64)[None, :] * n_in + inner[:, None]
    is_column, is_row = (column < n_out)[:, None], (row < n_rows)[None, :]
    total = tl.zeros([BN, BM], tl.float32)
    for start in range(0, n_in, BK):
        is_in = start + inner < n_in
        weight = _loaded(
            column_at + (start + inner)[None, :], is_column & is_in[None, :], NATIVE, IS_FULL,
            "evict_first",
        )  # fmt: skip
        if IS_FULL:
            own = _loaded(near_at + start, is_row, NATIVE, False, "")
        else:
            own = _loaded(near_at + start, is_row & is_in[:, None], NATIVE, False, "")
        total = tl.dot(weight, own, total)
    total = total * scale[:, None] * row_scale[None, :]
    store_rows(total, out, bias, row, column, n_rows, n_out, HAS_BIAS)


@takes_call
def multiply_fp8_rows(call: EightBitRows) -> dict[str, Any]:
    """R27: rows in eight bits, each with a scale of its own."""
    (n_rows, n_in), n_out = call.x.shape, call.codes.shape[0]
    out = call.x.new_empty((n_rows, n_out))
    if not n_rows:
        return {"y": out}
    near, row_scales = call.codes.new_empty((n_rows, n_in)), call.scales.new_empty(n_rows)
    held = min(block(n_in), MOST_AT_ONCE)
    _fp8_round_kernel[(n_rows,)](
        call.x.contiguous(), near, row_scales, n_in, H=held,
        num_warps=max(1, min(16, held // 256)), **overlapped(call.x),
    )  # fmt: skip
    device = record_of(call.x.device)
    is_native = device.capability >= KNOWS_FP8 and call.x.element_size() == 2
    tile = next(tile for most, tile in TILES if n_rows <= most).fitted(device, not is_native)
    _fp8_rows_kernel[(triton.cdiv(n_rows, tile.rows), triton.cdiv(n_out, tile.outputs))](
        near, row_scales, *contiguous(call.codes, call.scales),
        out if call.bias is None else call.bias.contiguous(), out, n_rows, n_out, n_in,
        AHEAD_EACH * device.processors, BM=tile.rows, BN=tile.outputs, BK=tile.inputs,
        IS_FULL=n_out % tile.outputs == 0 and n_in % tile.inputs == 0, NATIVE=is_native,
        HAS_BIAS=call.bias is not None, LINES=AHEAD_LINES, num_warps=tile.warps,
        num_stages=tile.stages, **overlapped(call.x),
    )  # fmt: skip
    return {"y": out}
