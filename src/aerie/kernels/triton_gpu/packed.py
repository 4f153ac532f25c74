"""Triton R18, a product with a weight of four-bit codes that are unpacked in registers.

Every program walks the inner axis once, in steps whose length follows from the weight alone, and
scales each step's sum into its total: the bits of a row do not depend on how many rows there are.
Codes less their zeros are whole numbers up to 15, which every dtype of rows holds exactly, so that
nothing is rounded before the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.cards.products import step_of
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn
from aerie.kernels.triton_gpu.packed_plan import Tile, tile_for

LEAST_STEP = 32  # a half of it is the shortest inner axis of a matrix instruction


@triton.jit
def store_rows(total, out, bias, row, column, n_rows, n_out, HAS_BIAS: tl.constexpr):
    """Round and store `total[columns, rows]`."""
    if HAS_BIAS:
        own = tl.load(bias + column, mask=column < n_out, other=0.0)
        total += own.to(tl.float32)[:, None]
    place = row.to(tl.int64)[None, :] * n_out + column[:, None]
    is_out = (row < n_rows)[None, :] & (column < n_out)[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize=("n_rows",))
def _int4_kernel(
    x, codes, scales, zeros, bias, out, n_rows, n_out, n_in, steps_each,
    BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The weight's rows stand in the long axis of the matrix instruction, as in `gemm.py`."""
    HALF: tl.constexpr = STEP // 2
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    inner = tl.arange(0, HALF)
    is_column = column < n_out
    is_row = row < n_rows
    x_at = x + row.to(tl.int64)[None, :] * n_in + inner[:, None]
    codes_at = codes + column.to(tl.int64)[:, None] * (n_in // 2) + inner[None, :]
    take_turn(OVERLAP)
    total = tl.zeros([BN, BM], tl.float32)
    for step in range(n_in // STEP):
        group = step // steps_each * n_out + column
        scale = tl.load(scales + group, mask=is_column, other=0.0)
        zero = tl.load(zeros + group, mask=is_column, other=0).to(tl.int16)[:, None]
        both = tl.load(
            codes_at + step * HALF, mask=is_column[:, None], other=0, eviction_policy="evict_first"
        ).to(tl.int16)
        first = tl.load(x_at + step * STEP, mask=is_row[None, :], other=0.0)
        second = tl.load(x_at + step * STEP + HALF, mask=is_row[None, :], other=0.0)
        low = ((both & 15) - zero).to(first.dtype)
        high = ((both >> 4) - zero).to(first.dtype)
        part = tl.dot(low, first, input_precision=PRECISION)
        part = tl.dot(high, second, part, input_precision=PRECISION)
        # Fused where it is written: two compilations must not round differently.
        total = tl.fma(part, tl.broadcast_to(scale[:, None], [BN, BM]), total)
    store_rows(total, out, bias, row, column, n_rows, n_out, HAS_BIAS)


def covers_int4(inputs: Mapping[str, Any]) -> bool:
    """Whether the steps of a weight are long enough for a matrix instruction."""
    return step_of(inputs["group_size"]) >= LEAST_STEP and multiplies(inputs["x"])


def multiplies(x: Any) -> bool:
    """Whether rows of a dtype are multiplied where they are: the interpreter has no bfloat16."""
    return not (triton.knobs.runtime.interpret and getattr(x, "dtype", None) == torch.bfloat16)


def multiply_int4(
    *,
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor,
    group_size: int,
    bias: Tensor | None = None,
) -> dict[str, Tensor]:
    """R18: scale times code less zero, group by group."""
    (n_rows, n_in), n_out, step = x.shape, codes.shape[0], step_of(group_size)
    out = x.new_empty((n_rows, n_out))
    if n_rows:
        tile = tile_for(n_rows, n_out, step, x)
        _int4_kernel[grid_of(tile, n_rows, n_out)](
            x.contiguous(), codes.contiguous(), scales.contiguous(), zeros.contiguous(),
            out if bias is None else bias.contiguous(), out, n_rows, n_out, n_in,
            group_size // step, STEP=step, HAS_BIAS=bias is not None, **options_of(tile, x),
        )  # fmt: skip
    return {"y": out}


def grid_of(tile: Tile, n_rows: int, n_out: int) -> tuple[int, int]:
    """Programs by outputs and by rows."""
    return triton.cdiv(n_out, tile.outputs), triton.cdiv(n_rows, tile.rows)


def options_of(tile: Tile, x: Tensor) -> dict[str, Any]:
    """What every product's launch is told of its tile and its rows."""
    return {
        "BM": tile.rows, "BN": tile.outputs, "num_warps": tile.warps, "num_stages": tile.stages,
        # float32 operands in full precision; others ignore it.
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **overlapped(x),
    }  # fmt: skip
