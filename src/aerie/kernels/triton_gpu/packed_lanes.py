"""Products of few rows with packed weights: every lane reads the codes that it multiplies.

A lane of the matrix instruction has a quarter of an output's inputs. Where its inputs lie together,
codes come into its registers sixteen bytes at a time and stay there: no shared memory, no barrier,
nothing is shuffled, and registers alone limit how many steps are under way. Rows are read likewise;
all programs of a processor find them in its nearest cache.

So an instruction does not take sixteen inputs in a row. Of every 64 inputs a lane has 16 that lie
together, and the first instruction takes the first four of each lane, the second the next four.
Tiles of many rows, which go through shared memory, bring their operands into the same order
(`codes_in_order`): a row has the same bits in all of them.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.packed_plan import PARTS, Product, Tile

# Of a program; one of more outputs would have a processor's registers to itself.
MOST_ROWS, MOST_OUTPUTS = 16, 32
PIECE, STEP_BYTES = 16, 64  # what a lane reads at once, and the four lanes of an output
# Of a lane, for codes on their way: two steps of sixteen outputs by four warps, 16 KB of a program.
MOST_REGISTERS = 32


@triton.jit
def codes_in_order(codes):
    """Codes [..., outputs, K] with their inputs in the order of the instructions."""
    K: tl.constexpr = codes.shape[len(codes.shape) - 1]
    if K < 32:  # one instruction takes all
        ordered = codes
    else:
        OWN: tl.constexpr = 16 if K >= 64 else 8  # inputs of a lane that lie together
        N: tl.constexpr = codes.numel // K
        split = tl.reshape(codes, (N, K // (4 * OWN), 4, OWN // 8, 2, 2, 2))
        ordered = tl.reshape(tl.permute(split, (0, 1, 3, 5, 2, 4, 6)), codes.shape)
    return ordered


@triton.jit
def rows_in_order(rows):
    """Rows [..., K, rows] likewise."""
    K: tl.constexpr = rows.shape[len(rows.shape) - 2]
    M: tl.constexpr = rows.shape[len(rows.shape) - 1]
    if K < 32:
        ordered = rows
    else:
        OWN: tl.constexpr = 16 if K >= 64 else 8
        P: tl.constexpr = rows.numel // (K * M)
        split = tl.reshape(rows, (P, K // (4 * OWN), 4, OWN // 8, 2, 2, 2, M))
        ordered = tl.reshape(tl.permute(split, (0, 1, 3, 5, 2, 4, 6, 7)), rows.shape)
    return ordered


@triton.jit
def lane_columns(BN: tl.constexpr):
    """Outputs of a program as registers, parts and lanes have them. [BN / 8, 1, 8, 1]"""
    high, low = tl.arange(0, BN // 8) * 8, tl.arange(0, 8)
    return tl.program_id(1) * BN + high[:, None, None, None] + low[None, None, :, None]


@triton.jit
def lane_last(column, first, n_steps, steps_each, n_out, IS_FULL: tl.constexpr):
    """Steps of a part that are there for an output, of all or each. [BN / 8, parts, 8, 1]"""
    if IS_FULL:
        last = tl.full([1, 1, 1, 1], steps_each, tl.int32)
    else:
        left = tl.minimum(n_steps - first, steps_each)[None, :, None, None]
        last = tl.where(column < n_out, left, 0)
    return last


@triton.jit
def lane_load(at, step, last, other, IS_FULL: tl.constexpr):
    """Codes of a step, which are read once; where it is not there, `other`."""
    if IS_FULL:
        found = tl.load(at, eviction_policy="evict_first")
    else:
        is_here = (step < last)[:, None]
        found = tl.load(at, mask=is_here, other=other, eviction_policy="evict_first")
    return found


@triton.jit
def lane_rows_at(x, n_rows, n_in, first, BM: tl.constexpr, K: tl.constexpr):
    """Where rows lie for a product over `K` inputs. [BM / 8, K / 64, 2, parts, 8, 4, 8]"""
    row = tl.arange(0, BM // 8)[:, None] * 8 + tl.arange(0, 8)[None, :] + tl.program_id(0) * BM
    # Rows beyond the last are read as the last one, and never written.
    row = tl.minimum(row, n_rows - 1).to(tl.int64)[:, None, None, None, :, None, None]
    chunk = tl.arange(0, K // 64)[None, :, None, None, None, None, None] * 64
    half = tl.arange(0, 2)[None, None, :, None, None, None, None] * 8
    lane = tl.arange(0, 4)[None, None, None, None, None, :, None] * 16
    own = tl.arange(0, 8)[None, None, None, None, None, None, :]
    # Rows begin at multiples of sixteen bytes.
    at = x + row * (n_in // 8 * 8) + (chunk + half + lane + own)
    return at + first[None, None, None, :, None, None, None]


@triton.jit
def lane_words_at(codes, column, pitch, first, WORDS: tl.constexpr):
    """Where words of codes lie, `pitch` times sixteen bytes from output to output.

    [BN / 8, WORDS / 16, parts, 8, 16]
    """
    place = column.to(tl.int64) * (pitch * 4) + first[None, :, None, None] * WORDS
    chunk = tl.arange(0, WORDS // 16)[None, :, None, None, None] * 16
    inner = chunk + tl.arange(0, 16)[None, None, None, None, :]
    return codes.to(tl.pointer_type(tl.int32)) + place[:, None] + inner


# Of an operand [..., 32], the compiler gives a lane four inputs in a row and the four sixteen on,
# because words were put together by `tl.join`; an instruction takes two of either. Were it to give
# others, results would stay right and operands would be shuffled: a test looks for that.
@triton.jit
def lane_rows(found, BM: tl.constexpr, K: tl.constexpr):
    """Rows as an operand [parts, K, BM]."""
    P: tl.constexpr = found.shape[3]
    split = tl.reshape(found, (BM // 8, K // 64, 2, P, 8, 4, 2, 2, 2))
    return tl.reshape(tl.permute(split, (3, 1, 2, 7, 5, 6, 8, 0, 4)), (P, K, BM))


@triton.jit
def lane_codes(floats, K: tl.constexpr):
    """What became of words [BN / 8, parts, 8, K / 16, 4, 2, 2] as an operand [parts, BN, K]."""
    N: tl.constexpr = floats.shape[0]
    P: tl.constexpr = floats.shape[1]
    split = tl.reshape(floats, (N, P, 8, K // 64, 4, 2, 2, 2, 2))
    return tl.reshape(tl.permute(split, (1, 0, 2, 3, 5, 7, 4, 6, 8)), (P, N * 8, K))


@triton.jit
def lane_words(held):
    """Words of every lane. [BN / 8, parts, 8, 4 * WORDS / 16, 4]"""
    SHAPE: tl.constexpr = (held.shape[0], held.shape[2], 8, held.shape[1] * 4, 4)
    return tl.reshape(tl.permute(held, (0, 2, 3, 1, 4)), SHAPE)


@triton.jit
def lane_groups_at(array, pitch, BN: tl.constexpr):
    """Where the first group says something of the outputs, to four lanes each.

    `pitch` is 1, which the compiler must not know: it would have neighbouring lanes read
    neighbouring outputs, and shuffle. [BN / 8, 1, 8, 4]
    """
    high, low = tl.arange(0, BN // 8) * 8, tl.arange(0, 8) * pitch + tl.program_id(1) * BN
    same = tl.zeros([4], tl.int32)[None, None, None, :]
    return array + (low[None, None, :, None] + same) + high[:, None, None, None]


@triton.jit
def lane_group(at, first, step, n_out, last, other, EVERY: tl.constexpr, IS_FULL: tl.constexpr):
    """What the group of a step of every part says; where it is not there, `other`."""
    at += ((first + step) // EVERY * n_out)[None, :, None, None]
    if IS_FULL:
        found = tl.load(at)
    else:
        found = tl.load(at, mask=step < last, other=other)
    return found


@triton.jit
def no_steps():
    """A tuple of any length, as far as types are known, with nothing in it yet."""
    return ()


@triton.jit
def add_scaled(total, part, scale):
    """`total` [parts, BN / 8, 8, BM / 8, 4, 2] plus the sums of a step, scaled."""
    part = tl.reshape(part, total.shape)
    scale = tl.permute(scale, (1, 0, 2, 3))[:, :, :, None, :, None]
    # Fused where it is written: two compilations must not round differently.
    return tl.fma(part, tl.broadcast_to(scale, total.shape), total)


def lane_tile(
    tile: Tile, product: Product, steps_each: int, x: Tensor, codes: Tensor
) -> tuple[Tile, int]:
    """A tile for lanes that read their codes, and of how many steps at once: a divisor of a part's.

    The tile as it is, and none, where they do not: where rows are many, steps short, or codes do
    not begin where sixteen bytes can be read.
    """
    code_bytes = int(product.step * product.code_bytes)
    is_whole = code_bytes % STEP_BYTES == 0 and product.n_in % product.step == 0
    is_few = product.has_parts and tile.is_spread and tile.rows <= MOST_ROWS
    is_aligned = codes.data_ptr() % PIECE == 0
    if not (is_few and is_whole and is_aligned and x.element_size() == 2):
        return tile, 0
    tile = replace(tile, outputs=min(tile.outputs, MOST_OUTPUTS))
    registers = tile.outputs // 8 * (PARTS // tile.warps) * code_bytes // 16
    most = max(1, MOST_REGISTERS // registers)
    return tile, max(n for n in range(1, most + 1) if steps_each % n == 0)
