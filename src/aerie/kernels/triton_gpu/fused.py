"""The small operations between products, each in one launch: what `models.layer_ops` swaps in.

Every function computes what its PyTorch definition there does, float32 inside and rounded where
that one rounds; sums run in another order, so results may differ in the last place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.gemm import silu_times
from aerie.kernels.triton_gpu.launch import block
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn

GATE_BLOCK = 1024
TURN_BLOCK = 1024  # angles of one program


@triton.jit
def _normalised(x, weight, eps, size, column, is_inside):
    """weight * x / sqrt(mean(x^2) + eps) of one row, in float32."""
    mean = tl.sum(x * x, axis=0) / size
    return x * tl.rsqrt(mean + eps) * tl.load(weight + column, mask=is_inside, other=0.0)


@triton.jit(do_not_specialize=("eps",))
def _norm_kernel(
    hidden, added, weight, sum_out, normed_out, hidden_stride, added_stride, normed_stride, size,
    eps, ADD: tl.constexpr, H: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One row: add what is pending, round, normalise."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, H)
    is_inside = column < size
    take_turn(OVERLAP)
    x = tl.load(hidden + row * hidden_stride + column, mask=is_inside, other=0.0)
    if ADD:
        more = tl.load(added + row * added_stride + column, mask=is_inside, other=0.0)
        # Rounded to the stream's dtype before it is normalised: the next layer reads that.
        x = (x.to(tl.float32) + more.to(tl.float32)).to(sum_out.dtype.element_ty)
        tl.store(sum_out + row * size + column, x, mask=is_inside)
    normed = _normalised(x.to(tl.float32), weight, eps, size, column, is_inside)
    target = normed_out + row * normed_stride + column
    tl.store(target, normed.to(normed_out.dtype.element_ty), mask=is_inside)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis, in the dtype of x."""
    rows = x.reshape(-1, x.shape[-1])
    normed = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _norm(rows, None, rows, normed, weight, eps)
    return normed.view(x.shape)


def add_normalise(
    hidden: Tensor, added: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The residual stream after an addition, and its RMS norm. [rows, hidden] each"""
    total = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    normed = torch.empty_like(total)
    _norm(hidden, added, total, normed, weight, eps)
    return total, normed


def _norm(
    hidden: Tensor, added: Tensor | None, total: Tensor, normed: Tensor, weight: Tensor, eps: float
) -> None:
    n_rows, size = hidden.shape
    if not n_rows:
        return
    assert hidden.stride(1) == 1 and (added is None or added.stride(1) == 1)
    _norm_kernel[(n_rows,)](
        hidden, hidden if added is None else added, weight, total, normed, hidden.stride(0),
        0 if added is None else added.stride(0), normed.stride(0), size, eps,
        ADD=added is not None, H=block(size), num_warps=8 if size >= 2048 else 4,
        **overlapped(hidden),
    )  # fmt: skip


@triton.jit(do_not_specialize=("n_rows",))
def _gate_kernel(
    gate, up, out, gate_stride, up_stride, n_rows, size, G: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
    """silu(gate) * up, the first rounded before the second multiplies."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * G + tl.arange(0, G)
    is_inside = column < size
    take_turn(OVERLAP)
    x = tl.load(gate + row * gate_stride + column, mask=is_inside, other=0.0)
    y = tl.load(up + row * up_stride + column, mask=is_inside, other=0.0)
    tl.store(out + row * size + column, silu_times(x, y), mask=is_inside)


def gate(gated: Tensor, up: Tensor) -> Tensor:
    """silu(gated) * up. Both [rows, width], possibly two halves of one product."""
    n_rows, size = gated.shape
    out = gated.new_empty((n_rows, size))
    if n_rows:
        assert gated.stride(1) == 1 and up.stride(1) == 1
        _gate_kernel[(n_rows, triton.cdiv(size, GATE_BLOCK))](
            gated, up, out, gated.stride(0), up.stride(0), n_rows, size, G=GATE_BLOCK,
            **overlapped(gated),
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=("factor", "n_rows"))
def _turn_kernel(
    positions, frequencies, cos_out, sin_out, factor, n_rows, HALF: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    """Angles of a few rows, their cosines and sines times a factor."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    pair = tl.arange(0, D)
    is_inside = (row < n_rows)[:, None] & (pair < HALF)[None, :]
    position = tl.load(positions + row, mask=row < n_rows, other=0).to(tl.float32)
    frequency = tl.load(frequencies + pair, mask=pair < HALF, other=0.0)
    angle = position[:, None] * frequency[None, :]
    place = row[:, None] * HALF + pair[None, :]
    tl.store(cos_out + place, tl.cos(angle) * factor, mask=is_inside)
    tl.store(sin_out + place, tl.sin(angle) * factor, mask=is_inside)


def turn(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of rows at positions [rows] i64: [rows, 1, dim / 2] f32 each."""
    n_rows, half = positions.shape[0], frequencies.shape[0]
    cos = frequencies.new_empty((n_rows, 1, half))
    sin = torch.empty_like(cos)
    rows = max(1, TURN_BLOCK // block(half))
    if n_rows:
        _turn_kernel[(triton.cdiv(n_rows, rows),)](
            positions.contiguous(), frequencies, cos, sin, factor, n_rows, HALF=half,
            D=block(half), R=rows,
        )  # fmt: skip
    return cos, sin


@triton.jit
def _rotate_kernel(
    queries, keys, values, cos, sin, slots, queries_out, keys_out, values_out,
    q_stride, k_stride, v_stride, n_heads, n_kv_heads, slot_stride,
    HEADS: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A few heads of one row: queries and keys are rotated, values copied; pairs (i, i + HALF)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, D)
    is_pair = (pair < HALF)[None, :] & (head >= 0)[:, None]
    entry = head[:, None] * (2 * HALF) + pair[None, :]
    take_turn(OVERLAP)
    slot = tl.load(slots + row)
    if tl.program_id(1) * HEADS < n_heads + n_kv_heads:
        c = tl.load(cos + row * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
        s = tl.load(sin + row * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
        is_query = tl.program_id(1) * HEADS < n_heads
        source = queries + row * q_stride
        target = queries_out + row * n_heads * (2 * HALF)
        if not is_query:
            source = keys + row * k_stride - n_heads * (2 * HALF)
            target = keys_out + slot * slot_stride - n_heads * (2 * HALF)
        first = tl.load(source + entry, mask=is_pair, other=0.0).to(tl.float32)
        second = tl.load(source + entry + HALF, mask=is_pair, other=0.0).to(tl.float32)
        dtype = queries_out.dtype.element_ty
        tl.store(target + entry, (first * c - second * s).to(dtype), mask=is_pair)
        tl.store(target + entry + HALF, (second * c + first * s).to(dtype), mask=is_pair)
    else:
        offset = (n_heads + n_kv_heads) * (2 * HALF)
        source = values + row * v_stride - offset
        target = values_out + slot * slot_stride - offset
        tl.store(target + entry, tl.load(source + entry, mask=is_pair, other=0.0), mask=is_pair)
        late = tl.load(source + entry + HALF, mask=is_pair, other=0.0)
        tl.store(target + entry + HALF, late, mask=is_pair)


def rotate_store(
    heads: tuple[Tensor, Tensor, Tensor],
    rotation: tuple[Tensor, Tensor],
    slots: Tensor,
    stored: tuple[Tensor, Tensor],
) -> Tensor:
    """Rotate queries and keys, write keys and values to their slots, return the queries.

    `heads` are queries, keys and values [rows, heads, dim], possibly parts of one product;
    `rotation` cosine and sine [rows, 1, dim / 2] f32; `stored` one layer of the pool twice.
    """
    queries, keys, values = heads
    n_rows, n_heads, dim = queries.shape
    n_kv_heads = keys.shape[1]
    rotated = queries.new_empty((n_rows, n_heads, dim))
    if not n_rows:
        return rotated
    for part in heads:
        assert part.stride(2) == 1 and part.stride(1) == dim, part.stride()
    per_program = next(n for n in (8, 4, 2, 1) if n_heads % n == 0 and n_kv_heads % n == 0)
    cos, sin = (part.reshape(n_rows, dim // 2) for part in rotation)
    _rotate_kernel[(n_rows, (n_heads + 2 * n_kv_heads) // per_program)](
        queries, keys, values, cos, sin, slots, rotated, *stored, queries.stride(0),
        keys.stride(0), values.stride(0), n_heads, n_kv_heads, stored[0].stride(0),
        HEADS=per_program, HALF=dim // 2, D=block(dim // 2), **overlapped(queries),
    )  # fmt: skip
    return rotated
