"""What both products with packed weights do alike: where steps begin, sums of parts, stores.

The inner axis is cut into parts by the weight alone and every part is walked in order, in steps;
the parts' sums are added in ascending order. So the bits of a row depend on no tile and on no
other row. Few rows let warps walk parts side by side: a product of 4096 outputs has 256 programs
of 16, and two warps a processor that walk alone cannot keep its memory busy.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.chips import record_of
from aerie.kernels.triton_gpu.overlap import fetch_ahead, overlapped
from aerie.kernels.triton_gpu.packed_plan import Tile

# Lines of 128 bytes of each output and part that a program of the first wave asks for while the
# kernel before still runs, and such programs a processor: 16 KB of each, as in `gemm.py`.
AHEAD_LINES, AHEAD_EACH = 2, 2
LINE = tl.constexpr(128)


@triton.jit
def steps_of(first, SPREAD: tl.constexpr):
    """A part's first step as it is added to places: of each part, where they are spread."""
    if SPREAD:
        return first[:, None, None]
    else:
        return first


@triton.jit
def each_part(places, SPREAD: tl.constexpr):
    """Places that all parts share, with an axis for the parts in front."""
    if SPREAD:
        return places[None, :, :]
    else:
        return places


@triton.jit
def of_group(
    array, step, column, n_steps, n_out, EVERY: tl.constexpr, SPREAD: tl.constexpr,
    IS_FULL: tl.constexpr,
):  # fmt: skip
    """What the group of a step says of the outputs; beyond the last step, what that one's says."""
    group = tl.minimum(step, n_steps - 1) // EVERY * n_out
    if SPREAD:
        at, is_column = group[:, None] + column[None, :], (column < n_out)[None, :]
    else:
        at, is_column = group + column, column < n_out
    if IS_FULL:
        found = tl.load(array + at)
    else:
        found = tl.load(array + at, mask=is_column, other=0)
    return found


@triton.jit
def ask_ahead(codes_at, n_ahead, LINES: tl.constexpr, SPREAD: tl.constexpr):
    """Bring the first codes of a program of the first wave into the cache: weights, no rows."""
    is_first_wave = (tl.program_id(0) == 0) & (tl.program_id(1) < n_ahead)
    if LINES > 0 and is_first_wave:
        fetch_ahead(codes_at + each_part((tl.arange(0, LINES) * LINE)[None, :], SPREAD))


@triton.jit
def _halves(sums):
    """Of sums [outputs, rows, parts] those of even parts and those of odd ones."""
    N: tl.constexpr = sums.shape[2] // 2
    return tl.split(tl.reshape(sums, (sums.shape[0], sums.shape[1], N, 2)))


@triton.jit
def in_order(sums):
    """The sums of eight parts, [8, outputs, rows], added in ascending order."""
    tl.static_assert(sums.shape[0] == 8)  # `packed_plan.PARTS`
    even, odd = _halves(tl.permute(sums, (1, 2, 0)))  # 0 2 4 6, 1 3 5 7
    s04, s26 = _halves(even)
    s15, s37 = _halves(odd)
    s0, s4 = tl.split(s04)
    s1, s5 = tl.split(s15)
    s2, s6 = tl.split(s26)
    s3, s7 = tl.split(s37)
    return s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7


@triton.jit
def store_rows(total, out, bias, row, column, n_rows, n_out, HAS_BIAS: tl.constexpr):
    """Round and store `total[columns, rows]`."""
    if HAS_BIAS:
        own = tl.load(bias + column, mask=column < n_out, other=0.0)
        total += own.to(tl.float32)[:, None]
    place = row.to(tl.int64)[None, :] * n_out + column[:, None]
    is_out = (row < n_rows)[None, :] & (column < n_out)[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_out)


def multiplies(x: Any) -> bool:
    """Whether rows of a dtype are multiplied where they are: the interpreter has no bfloat16."""
    return not (triton.knobs.runtime.interpret and getattr(x, "dtype", None) == torch.bfloat16)


def grid_of(tile: Tile, n_rows: int, n_out: int) -> tuple[int, int]:
    """Programs by rows and by outputs: those that share codes run together."""
    return triton.cdiv(n_rows, tile.rows), triton.cdiv(n_out, tile.outputs)


def options_of(tile: Tile, parts: int, part_bytes: int, x: Tensor) -> dict[str, Any]:
    """What every product's launch is told of its tile, its rows and a part of an output's codes."""
    lines = min(AHEAD_LINES, part_bytes // LINE.value)
    return {
        "BM": tile.rows, "BN": tile.outputs, "PARTS": parts, "SPREAD": tile.is_spread,
        "num_warps": tile.warps, "num_stages": tile.stages, "LINES": lines,
        "n_ahead": AHEAD_EACH * record_of(x.device).processors,
        # float32 operands in full precision; others ignore it.
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **overlapped(x),
    }  # fmt: skip
