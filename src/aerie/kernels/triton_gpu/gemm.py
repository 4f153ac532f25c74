"""Triton products of few rows with a row-major weight: bound by reading the weight once.

y[m, n] = sum_k x[m, k] w[n, k] + bias[n], accumulated in float32 and rounded once. A tile's parts
of the inner axis are added in ascending order by the program that finishes last, so results do
not depend on timing: the same bits every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
def _finish(
    total, out, bias, partials, arrived, row, is_row, column, n_rows, n_out, splits,
    SPLIT: tl.constexpr, HAS_BIAS: tl.constexpr,
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
        tl.store(out + place, total.to(out.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize=_SIZES)
def _dot_kernel(
    x, w, bias, out, partials, arrived, n_rows, n_out, n_in, steps_each, splits, n_ahead,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, OVERLAP: tl.constexpr, PRECISION: tl.constexpr, AHEAD: tl.constexpr,
    IS_FULL: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction, the few rows in the
    short one, so that little of it is padding."""
    column = tl.program_id(0) * BN + tl.arange(0, BN)
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
        splits, SPLIT, HAS_BIAS,
    )  # fmt: skip


@triton.jit(do_not_specialize=("n_rows",))
def _even_kernel(
    x, w, bias, out, partials, arrived, n_rows, n_out, n_in,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_BIAS: tl.constexpr,
    OVERLAP: tl.constexpr, PRECISION: tl.constexpr, AHEAD: tl.constexpr, IS_FULL: tl.constexpr,
):  # fmt: skip
    """As above, with all steps of all tiles dealt evenly: no processor waits for a last wave.

    A program walks on from tile to tile; what it has of a tile that others share goes to one of its
    two places in `partials` (its first tile, or its last), and who comes last adds them.
    """
    steps_each = n_in // BK
    n_all = n_out // BN * steps_each
    own, n_programs = tl.program_id(0), tl.num_programs(0)
    start, end = own * n_all // n_programs, (own + 1) * n_all // n_programs
    row = tl.arange(0, BM)
    inner = tl.arange(0, BK)
    lane = tl.arange(0, BN)
    first_tile = start // steps_each
    if OVERLAP and AHEAD > 0:
        LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth  # of 128 bytes
        at = (start - first_tile * steps_each) * BK + LINE * tl.arange(0, AHEAD * BK // LINE)
        ahead = (first_tile * BN + lane).to(tl.int64)[:, None] * n_in + at[None, :]
        if start - first_tile * steps_each + AHEAD <= steps_each:
            fetch_ahead(w + ahead)
    take_turn(OVERLAP)
    total = tl.zeros([BN, BM], tl.float32)
    for step in range(start, end):
        tile = step // steps_each
        at = (step - tile * steps_each) * BK
        column = tile * BN + lane
        weight = tl.load(
            w + column.to(tl.int64)[:, None] * n_in + (at + inner)[None, :],
            eviction_policy="evict_first",
        )
        x_at = x + row[None, :] * n_in + (at + inner)[:, None]
        if IS_FULL:
            own_rows = tl.load(x_at)
        else:
            own_rows = tl.load(x_at, mask=(row < n_rows)[None, :], other=0.0)
        total = tl.dot(weight, own_rows, total, input_precision=PRECISION)
        tile_start, tile_end = tile * steps_each, (tile + 1) * steps_each
        if (step == end - 1) | (step == tile_end - 1):
            is_last = True
            if (start > tile_start) | (end < tile_end):
                within = lane[:, None] * BM + row[None, :]
                place = 2 * own + (tile > first_tile).to(tl.int32)
                tl.store(partials + place * (BN * BM) + within, total)
                # Every thread's part must be written before this program counts as arrived.
                tl.debug_barrier()
                # Step s is of program ((s + 1) P - 1) // S, P programs and S steps in all.
                begins = ((tile_start + 1) * n_programs - 1) // n_all
                ends = (tile_end * n_programs - 1) // n_all
                count = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
                is_last = count == ends - begins
                if is_last:
                    total = tl.zeros([BN, BM], tl.float32)
                    for other in range(begins, ends + 1):
                        # A tile is the last of the program it begins in, unless that one's first.
                        is_second = (other * n_all // n_programs) // steps_each < tile
                        from_place = 2 * other + is_second.to(tl.int32)
                        total += tl.load(
                            partials + from_place * (BN * BM) + within, cache_modifier=".cg"
                        )
                    tl.store(arrived + tile, 0)
            if is_last:
                if HAS_BIAS:
                    total += tl.load(bias + column).to(tl.float32)[:, None]
                tl.store(
                    out + row[None, :] * n_out + column[:, None],
                    total.to(out.dtype.element_ty),
                    mask=(row < n_rows)[None, :],
                )
            total = tl.zeros([BN, BM], tl.float32)


@triton.jit(do_not_specialize=_SIZES)
def _gemv_kernel(
    x, w, bias, out, partials, arrived, n_rows, n_out, n_in, steps_each, splits, n_ahead,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, OVERLAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One or two rows: multiply and add without matrix instructions, reduce once at the end."""
    column = tl.program_id(0) * BN + tl.arange(0, BN)
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
        SPLIT, HAS_BIAS,
    )  # fmt: skip


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, scratch: GemmScratch
) -> Tensor:
    """x [rows, n_in] times the transpose of weight [n_out, n_in], by a Triton plan."""
    n_rows, n_in = x.shape
    n_out = weight.shape[0]
    assert plan.fits(n_out, n_in) and weight.is_contiguous(), (plan, weight.shape)
    out = x.new_empty((n_rows, n_out))
    device, n_tiles = record_of(x.device), n_out // plan.block_n
    n_all = n_in // plan.block_k
    n_steps = triton.cdiv(n_all, plan.splits)
    splits = triton.cdiv(n_all, n_steps)
    arrays = (x.contiguous(), weight, weight if bias is None else bias, out)
    sizes = (n_rows, n_out, n_in)
    cut = (*sizes, n_steps, splits, AHEAD_EACH * device.processors)
    tile = {"BN": plan.block_n, "BK": plan.block_k, "num_warps": plan.warps}
    tile |= {"HAS_BIAS": bias is not None}
    tile |= {"OVERLAP": device.overlaps, "launch_pdl": device.overlaps}
    if plan.kind == "even":
        assert n_rows <= plan.block_m and n_tiles <= MOST_TILES, (plan, x.shape, weight.shape)
        n_programs = min(plan.splits * device.processors, n_tiles * n_all)
        partials = _partials(x, 2 * n_programs * plan.block_n * plan.block_m)
        _even_kernel[(n_programs,)](
            *arrays, partials, scratch.arrived, *sizes, **_dot_options(x, plan), **tile
        )
        return out
    assert splits == 1 or n_tiles <= MOST_TILES, f"{n_tiles} tiles in parts, limit {MOST_TILES}"
    partials = _partials(x, splits * n_rows * n_out) if splits > 1 else out
    tile["SPLIT"] = splits > 1
    if plan.kind == "gemv":
        assert n_rows <= 2, f"{n_rows} rows, a gemv plan has at most 2"
        _gemv_kernel[(n_tiles, splits)](
            *arrays, partials, scratch.arrived, *cut, BM=n_rows, STAGES=plan.stages, **tile
        )
        return out
    n_row_tiles = triton.cdiv(n_rows, plan.block_m)
    assert splits == 1 or n_row_tiles == 1, "parts of the inner axis take one tile of rows"
    _dot_kernel[(n_tiles, splits, n_row_tiles)](
        *arrays, partials, scratch.arrived, *cut, **_dot_options(x, plan), **tile
    )
    return out


def _partials(x: Tensor, size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32, device=x.device)


def _dot_options(x: Tensor, plan: Plan) -> dict[str, Any]:
    """Of a kernel with matrix instructions."""
    size = plan.block_n * plan.block_k * x.element_size()
    return {
        "BM": plan.block_m,
        # float32 operands in full precision: the exact tests need it, bf16 ignores it.
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "AHEAD": 1 << (AHEAD_BYTES // size).bit_length() >> 1,  # tiles: a power of two, or none
        "IS_FULL": x.shape[0] % plan.block_m == 0,
        "num_stages": plan.stages,
    }
