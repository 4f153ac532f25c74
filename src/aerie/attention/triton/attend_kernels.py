"""Attention on the device: one pass over the columns.

For queries stacked in M (rows times the heads of a GQA group) and columns in blocks:

    s = q·kᵀ·scale,  m' = max(m, max s),  p = 2^(s - m'),  l' = l·2^(m - m') + Σp,
    o' = o·2^(m - m') + p·v

with base-2 exponentials (`scale` carries log₂e). A split leaves o / l and m + log₂ l to the merge.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from aerie.attention.triton.merge_kernels import final_factor, finite, or_one
from aerie.attention.triton.records import (
    EDGE_START,
    END,
    END_BLOCK,
    FIRST_BLOCK,
    FIRST_COLUMN,
    FIRST_ROW,
    N_EDGE,
    N_PLAIN,
    N_ROWS,
    N_SINKS,
    N_SPLITS,
    PARTIAL,
    PLAIN_END,
    PLAIN_START,
    PROGRAM_FIELDS,
    SINKS_END,
    TREE_START,
)


@triton.jit(do_not_specialize=["window", "n_sink_tokens"])
def attend_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    part_sums: tl.tensor,
    programs: tl.tensor,
    visible_prefix: tl.tensor,
    positions: tl.tensor,
    ancestor_bits: tl.tensor,
    kv_indices: tl.tensor,
    column_positions: tl.tensor,
    sink_logits: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    n_sink_tokens: tl.tensor,
    query_row_stride: tl.tensor,
    query_head_stride: tl.tensor,
    slot_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    N_HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_TREE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_CHAINED: tl.constexpr,
    IS_OVERLAPPED: tl.constexpr,
) -> None:
    """One program: some heads of one unit's rows over a run of its blocks."""
    record = programs + tl.program_id(0) // (N_HEADS // HEADS) * PROGRAM_FIELDS
    _take_turn(IS_CHAINED, IS_OVERLAPPED)
    # All reads of the record before the branch: they then wait for the memory together.
    n_rows = tl.load(record + N_ROWS)
    first_row = tl.load(record + FIRST_ROW)
    first_block = tl.load(record + FIRST_BLOCK)
    end_block = tl.load(record + END_BLOCK)
    n_plain = tl.load(record + N_PLAIN)
    plain_start = tl.load(record + PLAIN_START)
    slots = kv_indices + tl.load(record + FIRST_COLUMN)
    if n_rows == 0:
        return
    first_head = tl.program_id(0) % (N_HEADS // HEADS) * HEADS
    stacked = tl.arange(0, BLOCK_M)
    is_own = stacked // HEADS < n_rows
    row = first_row + stacked // HEADS
    head = first_head + stacked % HEADS
    dim = tl.arange(0, BLOCK_D)
    is_dim = (dim < HEAD_DIM)[None, :]
    at_query = (row.to(tl.int64) * query_row_stride + head * query_head_stride)[:, None] + dim
    q = tl.load(queries + at_query, mask=is_own[:, None] & is_dim, other=0.0)
    keys += first_head // GROUP * kv_head_stride
    values += first_head // GROUP * kv_head_stride
    columns = tl.arange(0, BLOCK_N)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)

    for block in range(first_block, tl.minimum(end_block, n_plain)):
        column = plain_start + block * BLOCK_N + columns
        place = (_slot(slots, column, PAGE) * slot_stride)[:, None] + dim[None, :]
        k = _whole(keys + place, is_dim, HEAD_DIM == BLOCK_D)
        v = _whole(values + place, is_dim, HEAD_DIM == BLOCK_D)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        # Every row sees every column here, so the maximum is finite and needs no guard.
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_top[:, None])
        keep = tl.exp2(top - new_top)
        total = total * keep + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
        top = new_top

    if end_block > n_plain:
        prefix = tl.load(visible_prefix + row, mask=is_own, other=0)
        position = tl.load(positions + row, mask=is_own, other=0).to(tl.int32)
        # Few blocks, often one a program: nothing to pipeline, and the code stays small.
        for block in tl.range(tl.maximum(first_block, n_plain), end_block, num_stages=1):
            start, stop = _masked_range(record, block - n_plain, BLOCK_N)
            column = start + columns
            is_live = column < stop
            slot = tl.load(slots + column, mask=is_live, other=0)
            place = (slot * slot_stride)[:, None] + dim[None, :]
            # Zeros, not whatever a dead slot holds: zero weight times NaN is NaN.
            k = tl.load(keys + place, mask=is_live[:, None] & is_dim, other=0.0)
            v = tl.load(values + place, mask=is_live[:, None] & is_dim, other=0.0)
            sees = column[None, :] < prefix[:, None]
            if HAS_TREE:
                bit = column - tl.load(record + TREE_START)
                sees |= _is_ancestor(ancestor_bits, row, is_own, bit)
            if HAS_WINDOW:
                at = column_positions + tl.load(record + FIRST_COLUMN) + column
                sees &= _is_near(at, is_live, position, window, n_sink_tokens)
            sees &= is_live[None, :]
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = tl.where(sees, scores * scale, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            base = finite(new_top)
            weights = tl.exp2(scores - base[:, None])
            keep = tl.exp2(top - base)
            total = total * keep + tl.sum(weights, 1)
            acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
            top = new_top

    if tl.load(record + N_SPLITS) == 1:
        acc *= final_factor(sink_logits, head, is_own, top, total, HAS_SINKS)[:, None]
        at_out = ((row.to(tl.int64) * N_HEADS + head) * HEAD_DIM)[:, None] + dim
        tl.store(out + at_out, acc.to(out.dtype.element_ty), mask=is_own[:, None] & is_dim)
    else:
        part = tl.load(record + PARTIAL).to(tl.int64) * (N_HEADS // HEADS) + first_head // HEADS
        at_part = part * BLOCK_M + stacked
        tl.store(part_sums + at_part, top + tl.log2(or_one(total)), mask=is_own)
        # Padded dimensions too: the merge reads whole rows.
        acc *= (1.0 / or_one(total))[:, None]
        tl.store(parts + at_part[:, None] * BLOCK_D + dim, acc, mask=is_own[:, None])


@triton.jit
def _take_turn(IS_CHAINED: tl.constexpr, IS_OVERLAPPED: tl.constexpr) -> None:
    """Before any read and any return: the records may be of the kernel before this one."""
    if IS_CHAINED:
        gdc_wait()
    if IS_OVERLAPPED:
        gdc_launch_dependents()  # the merge may be brought up; it waits before it reads


@triton.jit
def _slot(slots: tl.tensor, column: tl.tensor, PAGE: tl.constexpr) -> tl.tensor:
    """Slots of columns; those of a page follow each other, so one read serves a page."""
    if PAGE > 1:
        in_page = column % PAGE
        slot = tl.load(slots + column - in_page) + in_page
    else:
        slot = tl.load(slots + column)
    return slot


@triton.jit
def _whole(at: tl.tensor, is_dim: tl.tensor, IS_WHOLE: tl.constexpr) -> tl.tensor:
    """Keys or values of live columns; a mask only where the dimension is padded."""
    if IS_WHOLE:
        loaded = tl.load(at)
    else:
        loaded = tl.load(at, mask=is_dim, other=0.0)
    return loaded


@triton.jit
def _masked_range(record: tl.tensor, index: tl.tensor, BLOCK_N: tl.constexpr) -> tl.tensor:
    """(first column, end) of a masked block: sinks, then the window's edge, then the rest."""
    n_sinks = tl.load(record + N_SINKS)
    n_edge = tl.load(record + N_EDGE)
    start = tl.load(record + PLAIN_END) + (index - n_sinks - n_edge) * BLOCK_N
    stop = tl.load(record + END)
    if index < n_sinks:
        start = index * BLOCK_N
        stop = tl.load(record + SINKS_END)
    elif index < n_sinks + n_edge:
        start = tl.load(record + EDGE_START) + (index - n_sinks) * BLOCK_N
        stop = tl.load(record + PLAIN_START)
    return start, stop


@triton.jit
def _is_ancestor(
    ancestor_bits: tl.tensor, row: tl.tensor, is_own: tl.tensor, bit: tl.tensor
) -> tl.tensor:
    """[rows, columns]: whether column `bit` of the tree is an ancestor of the row, or itself."""
    word_idx = bit >> 5
    word = tl.zeros((row.shape[0], bit.shape[0]), tl.int32)
    for idx in tl.static_range(4):
        own = tl.load(ancestor_bits + row * 4 + idx, mask=is_own, other=0)
        word = tl.where((word_idx == idx)[None, :], own[:, None], word)
    # `& 31` for bits outside the tree, whose word is 0: a shift must stay below the width.
    return ((word >> (bit & 31)[None, :]) & 1) != 0


@triton.jit
def _is_near(
    at: tl.tensor,
    is_live: tl.tensor,
    position: tl.tensor,
    window: tl.tensor,
    n_sink_tokens: tl.tensor,
) -> tl.tensor:
    """[rows, columns]: whether a column's position, read at `at`, is within the row's reach."""
    key_position = tl.load(at, mask=is_live, other=0)
    is_near = key_position[None, :] > position[:, None] - window
    return is_near | (key_position < n_sink_tokens)[None, :]
