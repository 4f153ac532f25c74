"""Triton R25, products of a mixture's packed experts: every program has rows of one expert.

Which rows those are is found on the device, from where the pairs of each expert begin: the grid is
the worst case, and a program without rows ends at once. Codes are widened in registers, between
shared memory and the matrix unit. As bfloat16 a code's bits are 2^-126 of it, exponent and mantissa
where they belong, so that one product with a power of two makes the weight, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.experts import BLOCK, BLOCK_BYTES, PITCH, Grouped
from aerie.kernels.triton_gpu.experts_plan import ExpertTile, tile_for
from aerie.kernels.triton_gpu.launch import block, contiguous, packed
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn
from aerie.kernels.triton_gpu.packed_walk import multiplies

# Up to here a scale times 2^126 is a bfloat16, and one product does.
LARGEST_OF_ONE_STEP = 128


@triton.jit
def _own_rows(starts, n_experts, BM: tl.constexpr, X: tl.constexpr):
    """Of this program's tile: its expert, its first pair in the order, and the expert's last."""
    expert = tl.arange(0, X)
    is_expert = expert < n_experts
    first = tl.load(starts + expert, mask=is_expert, other=0)
    last = tl.load(starts + expert + 1, mask=is_expert, other=0)
    n_tiles = (last - first + BM - 1) // BM
    end = tl.cumsum(n_tiles, 0)
    tile = tl.program_id(1)
    is_own = (end > tile) & (end - n_tiles <= tile)
    begin = tl.where(is_own, first + (tile - end + n_tiles) * BM, 0)
    # One of them at most is its own.
    return (
        tl.sum(tl.where(is_own, expert, 0), 0),
        tl.sum(begin, 0),
        tl.sum(tl.where(is_own, last, 0), 0),
    )


@triton.jit
def _tiny_low(codes):
    """2^-126 of the low halves of bytes, as bfloat16."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 halves, pair;
        and.b32 halves, $2, 0x0F0F0F0F;
        prmt.b32 pair, halves, 0, 0x4140;
        mul.lo.u32 pair, pair, 0x1040;
        and.b32 $0, pair, 0x81C081C0;
        prmt.b32 pair, halves, 0, 0x4342;
        mul.lo.u32 pair, pair, 0x1040;
        and.b32 $1, pair, 0x81C081C0;
        }""",
        "=r,=r,r",
        [codes],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _tiny_high(codes):
    """2^-126 of the high halves of bytes, as bfloat16."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 halves, pair;
        and.b32 halves, $2, 0xF0F0F0F0;
        prmt.b32 pair, halves, 0, 0x4140;
        mul.lo.u32 pair, pair, 0x104;
        and.b32 $0, pair, 0x81C081C0;
        prmt.b32 pair, halves, 0, 0x4342;
        mul.lo.u32 pair, pair, 0x104;
        and.b32 $1, pair, 0x81C081C0;
        }""",
        "=r,=r,r",
        [codes],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _widened(codes):
    """Codes 0 to 15 as float32."""
    size = (codes & 7).to(tl.int32)
    normal = ((size + 252) << 22).to(tl.float32, bitcast=True)
    value = tl.where(size < 2, size.to(tl.float32) * 0.5, normal)
    return tl.where(codes > 7, -value, value)


@triton.jit
def _walk_bf16(
    x_row, is_row, codes_row, scales_row, is_column, n_in,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, IS_FULL: tl.constexpr,
    IS_PADDED: tl.constexpr, ONE_STEP: tl.constexpr,
):  # fmt: skip
    """Sums [BN, BM] of bfloat16 rows; codes come through shared memory, `BK` of an output."""
    inner, byte, group = tl.arange(0, BK), tl.arange(0, BK // 2), tl.arange(0, BK // 32)
    total = tl.zeros([BN, BM], tl.float32)
    for first in range(0, n_in, BK):
        is_code, is_scale, is_x = is_column[:, None], is_column[:, None], is_row[:, None]
        if not IS_FULL:
            is_code &= (first // 2 + byte < n_in // 2)[None, :]
            is_x &= (first + inner < n_in)[None, :]
            if not IS_PADDED:
                is_scale &= (first // 32 + group < n_in // 32)[None, :]
        held = tl.load(codes_row[:, None] + first // 2 + byte[None, :], mask=is_code, other=0)
        scale = tl.load(scales_row[:, None] + first // 32 + group[None, :], mask=is_scale, other=0)
        own = tl.load(x_row[:, None] + first + inner[None, :], mask=is_x, other=0.0)
        weight = tl.join(_tiny_low(held), _tiny_high(held))
        weight = tl.reshape(weight, (BN, BK // 32, 32))
        if ONE_STEP:
            power = ((scale.to(tl.int16) + 126) << 7).to(tl.bfloat16, bitcast=True)
        else:
            weight = weight * tl.full([], 8.507059173023462e37, tl.bfloat16)  # 2^126
            power = (scale.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)
        weight = tl.reshape(weight * power[:, :, None], (BN, BK))
        total = tl.dot(weight, tl.trans(own), total)
    return total


@triton.jit
def _walk(
    x_row, is_row, codes_row, scales_row, is_column, n_in,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same in other dtypes, whose range holds codes but not scales: block by block."""
    byte = tl.arange(0, 16)
    total = tl.zeros([BN, BM], tl.float32)
    for group in range(n_in // 32):
        at = codes_row[:, None] + group * 16 + byte[None, :]
        held = tl.load(at, mask=is_column[:, None], other=0)
        scale = tl.load(scales_row + group, mask=is_column, other=0).to(tl.int32)
        x_at = x_row[None, :] + group * 32 + 2 * byte[:, None]
        even = tl.load(x_at, mask=is_row[None, :], other=0.0)
        odd = tl.load(x_at + 1, mask=is_row[None, :], other=0.0)
        part = tl.dot(_widened(held & 15).to(even.dtype), even, input_precision=PRECISION)
        part = tl.dot(_widened(held >> 4).to(odd.dtype), odd, part, input_precision=PRECISION)
        # 2^-127 has no hidden bit.
        power = tl.where(scale == 0, 0x00400000, scale << 23).to(tl.float32, bitcast=True)
        total = tl.fma(part, tl.broadcast_to(power[:, None], [BN, BM]), total)
    return total


@triton.jit
def _gated(total, gate, BN: tl.constexpr, BM: tl.constexpr):
    """Gates and ups in turn [BN, BM] to [BN / 2, BM]."""
    alpha, limit = tl.load(gate), tl.load(gate + 1)
    own, up = tl.split(tl.permute(tl.reshape(total, (BN // 2, 2, BM)), (0, 2, 1)))
    own = tl.minimum(own, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    # The exponential from the side that cannot overflow.
    fading = tl.exp(-tl.abs(alpha * own))
    return (up + 1.0) * own * (tl.where(alpha * own < 0, fading, 1.0) / (1.0 + fading))


@triton.jit(do_not_specialize=("n_experts",))
def _experts_kernel(
    x, blocks, scales, bias, order, starts, gate, out, n_experts, n_active, n_out, n_in,
    block_expert, block_row, scale_expert, scale_row, bias_expert,
    X: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NATIVE: tl.constexpr,
    ONE_STEP: tl.constexpr, IS_FULL: tl.constexpr, IS_PADDED: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The weight's outputs stand in the long axis of the matrix instruction, as in `gemm.py`."""
    take_turn(OVERLAP)
    expert, begin, last = _own_rows(starts, n_experts, BM, X)
    if begin < last:
        place = begin + tl.arange(0, BM)
        is_row = place < last
        pair = tl.load(order + place, mask=is_row, other=0).to(tl.int64)
        column = tl.program_id(0) * BN + tl.arange(0, BN)
        is_column = column < n_out
        x_row = x + pair // n_active * n_in
        wide = expert.to(tl.int64)
        codes_row = blocks + wide * block_expert + column.to(tl.int64) * block_row
        scales_row = scales + wide * scale_expert + column.to(tl.int64) * scale_row
        if NATIVE:
            total = _walk_bf16(
                x_row, is_row, codes_row, scales_row, is_column, n_in, BM, BN, BK, IS_FULL,
                IS_PADDED, ONE_STEP,
            )  # fmt: skip
        else:
            total = _walk(x_row, is_row, codes_row, scales_row, is_column, n_in, BM, BN, PRECISION)
        if HAS_BIAS:
            own = tl.load(bias + wide * bias_expert + column, mask=is_column, other=0.0)
            total += own.to(tl.float32)[:, None]
        if GATED:
            total = _gated(total, gate, BN, BM)
            n_out = n_out // 2
            column = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
        is_out = is_row[None, :] & (column < n_out)[:, None]
        at = out + pair[None, :] * n_out + column[:, None]
        tl.store(at, total.to(out.dtype.element_ty), mask=is_out)


def covers_experts(inputs: Mapping[str, Any]) -> bool:
    """Whether the rows can be multiplied where they are."""
    return multiplies(inputs["x"])


@takes_call
def multiply_experts(call: Grouped) -> dict[str, Tensor]:
    """R25: the rows of each expert by its weight, gated where there is a gate."""
    (n_experts, n_out), n_in, n_pairs = call.blocks.shape[:2], call.x.shape[1], call.order.shape[0]
    is_gated = len(call.gate) > 0
    out = call.x.new_empty((n_pairs, n_out // 2 if is_gated else n_out))
    if n_pairs:
        blocks, scales = _in_rows(call.blocks), packed(call.scales)
        tile = tile_for(n_pairs, n_experts, n_out, call.x)
        _experts_kernel[grid_of(tile, n_pairs, n_experts, n_out)](
            call.x.contiguous(), blocks, scales,
            out if call.bias is None else call.bias.contiguous(),
            *contiguous(call.order, call.starts), call.gate if is_gated else out, out, n_experts,
            call.n_active, n_out, n_in, *blocks.stride()[:2], *scales.stride()[:2], n_out,
            ONE_STEP=call.largest_scale <= LARGEST_OF_ONE_STEP, IS_FULL=n_in % tile.inner == 0,
            # What is read beyond the last scale of an output is then its own, whatever it says.
            IS_PADDED=scales.stride(1) % PITCH == 0,
            HAS_BIAS=call.bias is not None, GATED=is_gated, X=block(n_experts),
            **_options_of(tile, call.x),
        )  # fmt: skip
    return {"y": out}


def grid_of(tile: ExpertTile, n_pairs: int, n_experts: int, n_out: int) -> tuple[int, int]:
    """Programs by outputs, and by tiles of rows as many as there can be at all."""
    most = min(n_pairs, n_experts + n_pairs // tile.rows)
    return triton.cdiv(n_out, tile.outputs), most


def _in_rows(blocks: Tensor) -> Tensor:
    """With the blocks of an output one behind the other."""
    return blocks if blocks.stride()[2:] == (BLOCK_BYTES, 1) else blocks.contiguous()


def _options_of(tile: ExpertTile, x: Tensor) -> dict[str, Any]:
    """What a launch is told of its tile and its rows."""
    return {
        "BM": tile.rows, "BN": tile.outputs, "BK": tile.inner, "num_warps": tile.warps,
        "num_stages": tile.stages, "NATIVE": x.dtype == torch.bfloat16,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **overlapped(x),
    }  # fmt: skip


assert BLOCK == 2 * BLOCK_BYTES == 32, "blocks of another size take another kernel"
