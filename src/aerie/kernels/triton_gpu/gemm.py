"""Triton products of few rows with a row-major weight: bound by reading the weight once.

y[m, n] = sum_k x[m, k] w[n, k] + bias[n], accumulated in float32 and rounded once. A tile's parts
of the inner axis are added in ascending order by the program that finishes last, so results do
not depend on timing: the same bits every run. A gated product is that of two weights, one above the
other, of which silu(first) times second is kept: the bits of a product and a gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.chips import record_of
from aerie.kernels.triton_gpu.gemm_plan import Plan
from aerie.kernels.triton_gpu.overlap import fetch_ahead, take_turn

# One counter per tile of outputs; more tiles than this need no split, they fill the card.
MOST_TILES = 8192
_SIZES = ("n_rows", "steps_each", "splits", "n_ahead")
# Bytes of the weight that a program of the first wave asks for while the kernel before still runs,
# and such programs a processor. Chain of 7 at 1 x 1K, verification: nothing 4.76 ms, 16 KB 4.72,
# 32 KB 4.73, of four programs a processor 4.72 (H200, 2026-11).
AHEAD_BYTES, AHEAD_EACH = 16384, 2


@dataclass(frozen=True, eq=False)
class GemmScratch:
    """Arrival counters of one stream of products: 0 before and after each."""

    arrived: Tensor  # [MOST_TILES] i32


def gemm_scratch(device: torch.device | str) -> GemmScratch:
    """Counters on a device."""
    return GemmScratch(torch.zeros(MOST_TILES, dtype=torch.int32, device=device))


@triton.jit
def silu_times(gate, up):
    """silu(gate) * up, the first rounded before the second multiplies."""
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    return (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _columns(n_out, BN: tl.constexpr, GATED: tl.constexpr):
    """Outputs of a program; of a gated product half of them from either weight."""
    lane = tl.arange(0, BN)
    if GATED:
        return tl.program_id(0) * (BN // 2) + lane % (BN // 2) + lane // (BN // 2) * (n_out // 2)
    return tl.program_id(0) * BN + lane


@triton.jit
def _finish(
    total, out, bias, partials, arrived, row, is_row, column, n_rows, n_out, splits,
    SPLIT: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Round and store `total[rows, columns]`; with several parts, the last program adds them."""
    place = row[:, None] * n_out + column[None, :]
    is_out = is_row[:, None] & (column[None, :] < n_out)
    is_last = True
    if SPLIT:
        part = tl.program_id(1)
        size = n_rows * n_out
        tl.store(partials + part * size + place, total, mask=is_out)
        # Every thread's part must be written before this program counts as arrived.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == splits - 1
        if is_last:
            total = tl.zeros_like(total)
            for other in range(splits):
                # Written by other multiprocessors: not from this one's own cache.
                total += tl.load(
                    partials + other * size + place, mask=is_out, other=0.0, cache_modifier=".cg"
                )
            tl.store(arrived + tl.program_id(0), 0)
    if is_last:
        if HAS_BIAS:
            total += tl.load(bias + column).to(tl.float32)[None, :]
        result = total.to(out.dtype.element_ty)
        if GATED:
            HALF: tl.constexpr = total.shape[1] // 2
            both = tl.permute(tl.reshape(result, (total.shape[0], 2, HALF)), (0, 2, 1))
            gate, up = tl.split(both)
            own = tl.program_id(0) * HALF + tl.arange(0, HALF)
            joined = row[:, None] * (n_out // 2) + own[None, :]
            tl.store(out + joined, silu_times(gate, up), mask=is_row[:, None])
        else:
            tl.store(out + place, result, mask=is_out)


@triton.jit(do_not_specialize=_SIZES)
def _dot_kernel(
    x, w, bias, out, partials, arrived, n_rows, n_out, n_in, steps_each, splits, n_ahead,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, OVERLAP: tl.constexpr, PRECISION: tl.constexpr, AHEAD: tl.constexpr,
    IS_FULL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction, the few rows in the
    short one, so that little of it is padding."""
    column = _columns(n_out, BN, GATED)
    row = tl.program_id(2) * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    # A multiple of BK by its form: the compiler then knows that loads are aligned.
    first = tl.program_id(1) * steps_each
    n_steps = tl.minimum(steps_each, n_in // BK - first)
    x_at = x + row[None, :] * n_in + first * BK + inner[:, None]
    w_row = w + column.to(tl.int64) * n_in + first * BK
    w_at = w_row[:, None] + inner[None, :]
    if OVERLAP and AHEAD > 0:
        is_first_wave = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0) < n_ahead
        if is_first_wave & (n_steps >= AHEAD):
            LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth  # of 128 bytes
            fetch_ahead(w_row[:, None] + LINE * tl.arange(0, AHEAD * BK // LINE)[None, :])
    take_turn(OVERLAP)
    total = tl.zeros([BN, BM], tl.float32)
    for step in range(n_steps):
        weight = tl.load(w_at + step * BK, eviction_policy="evict_first")
        if IS_FULL:
            own = tl.load(x_at + step * BK)
        else:
            # Padding rows are not fetched: sixteen reads of one row took longer than sixteen rows.
            own = tl.load(x_at + step * BK, mask=(row < n_rows)[None, :], other=0.0)
        total = tl.dot(weight, own, total, input_precision=PRECISION)
    _finish(
        tl.trans(total), out, bias, partials, arrived, row, row < n_rows, column, n_rows, n_out,
        splits, SPLIT, HAS_BIAS, GATED,
    )  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def _gemv_kernel(
    x, w, bias, out, partials, arrived, n_rows, n_out, n_in, steps_each, splits, n_ahead,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, OVERLAP: tl.constexpr, STAGES: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """One or two rows: multiply and add without matrix instructions, reduce once at the end."""
    column = _columns(n_out, BN, GATED)
    row = tl.arange(0, BM)
    inner = tl.arange(0, BK)
    # A multiple of BK by its form: the compiler then knows that loads are aligned.
    first = tl.program_id(1) * steps_each
    n_steps = tl.minimum(steps_each, n_in // BK - first)
    w_at = w + column.to(tl.int64)[:, None] * n_in + first * BK + inner[None, :]
    x_at = x + first * BK + inner
    # The first tile is on its way while the kernel before still runs.
    weight = tl.load(w_at, eviction_policy="evict_first").to(tl.float32)
    take_turn(OVERLAP)
    total = weight * tl.load(x_at).to(tl.float32)[None, :]
    other = tl.zeros([BN, BK], tl.float32)
    if BM == 2:
        other += weight * tl.load(x_at + n_in).to(tl.float32)[None, :]
    for step in tl.range(1, n_steps, num_stages=STAGES):
        weight = tl.load(w_at + step * BK, eviction_policy="evict_first").to(tl.float32)
        total += weight * tl.load(x_at + step * BK).to(tl.float32)[None, :]
        if BM == 2:
            other += weight * tl.load(x_at + n_in + step * BK).to(tl.float32)[None, :]
    summed = tl.sum(total, axis=1)[None, :]
    if BM == 2:
        summed = tl.where((row == 0)[:, None], summed, tl.sum(other, axis=1)[None, :])
    _finish(
        summed, out, bias, partials, arrived, row, row < n_rows, column, n_rows, n_out, splits,
        SPLIT, HAS_BIAS, GATED,
    )  # fmt: skip


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: Plan,
    scratch: GemmScratch,
    is_gated: bool = False,
) -> Tensor:
    """x [rows, n_in] times the transpose of weight [n_out, n_in], by a Triton plan.

    Gated: the first half of that as silu, times the second. [rows, n_out / 2]
    """
    n_rows, n_in = x.shape
    n_out = weight.shape[0]
    assert plan.fits(n_out, n_in) and weight.is_contiguous(), (plan, weight.shape)
    out = x.new_empty((n_rows, n_out // 2 if is_gated else n_out))
    n_steps = triton.cdiv(n_in // plan.block_k, plan.splits)
    splits = triton.cdiv(n_in // plan.block_k, n_steps)
    n_tiles = n_out // plan.block_n
    partials, device = out, record_of(x.device)
    if splits > 1:
        assert n_tiles <= MOST_TILES, f"{n_tiles} tiles in parts, limit {MOST_TILES}"
        partials = torch.empty(splits, n_rows, n_out, dtype=torch.float32, device=x.device)
    shared = (
        x.contiguous(), weight, weight if bias is None else bias, out, partials, scratch.arrived,
        n_rows, n_out, n_in, n_steps, splits, AHEAD_EACH * device.processors,
    )  # fmt: skip
    tile = {"BN": plan.block_n, "BK": plan.block_k, "SPLIT": splits > 1}
    tile |= {"HAS_BIAS": bias is not None, "GATED": is_gated, "num_warps": plan.warps}
    tile |= {"OVERLAP": device.overlaps, "launch_pdl": device.overlaps}
    if plan.kind == "gemv":
        assert n_rows <= 2, f"{n_rows} rows, a gemv plan has at most 2"
        _gemv_kernel[(n_tiles, splits)](*shared, BM=n_rows, STAGES=plan.stages, **tile)
        return out
    # float32 operands in full precision: the exact tests need it, bf16 ignores it.
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    n_row_tiles = triton.cdiv(n_rows, plan.block_m)
    assert splits == 1 or n_row_tiles == 1, "parts of the inner axis take one tile of rows"
    size = plan.block_n * plan.block_k * weight.element_size()
    ahead = 1 << (AHEAD_BYTES // size).bit_length() >> 1  # tiles: a power of two, or none
    _dot_kernel[(n_tiles, splits, n_row_tiles)](
        *shared, BM=plan.block_m, PRECISION=precision, AHEAD=ahead, num_stages=plan.stages,
        IS_FULL=n_rows % plan.block_m == 0, **tile,
    )  # fmt: skip
    return out
