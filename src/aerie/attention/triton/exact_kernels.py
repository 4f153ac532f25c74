"""Attention on the device whose bits depend on a row alone, whatever shares its batch or tree.

A row at position p sees one key at every position up to p. Positions are cut into blocks, blocks
into spans whose ends are fixed, and a row's result is a fold in the order of positions:

    in a span   m' = max(m, max s),  w = 2^(s - m'),  l' = l·2^(m - m') + Σw,
                o' = o·2^(m - m') + Σw·v
    of spans    the same, with the triple (m, l, o) of a span in place of a block's scores

A block of which a row sees nothing leaves its triple as it is, bit for bit, so neighbours that see
more of it do no harm. Which program folds what is then free: spans in parallel, with a merge behind
them, or all in one program. Rows of a branching tree stand at one position with different keys:
where the tree begins, keys of a path are gathered into the lanes of their positions, for all rows
that stand on it: a request that ends sooner does not see the rest.
Multiplications and additions are contracted only where it says so (`enable_fp_fusion` is off): a
compiler may do it in one loop and not in the other.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from aerie.attention.triton.exact_plan_kernels import (
    END_BLOCK,
    FIRST_BLOCK,
    IS_PATH,
    ITEM_COLUMN,
    ITEM_FIELDS,
    ITEM_ORDER,
    ITEM_ROW,
    ITEM_ROWS,
    ITEM_TREE,
    MASKED_BLOCK,
    N_PARTS,
    NEXT_PART,
    ORDER,
    PART,
    PATH,
    ROW_FIELDS,
    WALK_FIELDS,
    is_span_end,
)
from aerie.attention.triton.merge_kernels import finite, or_one


@triton.jit
def _fold(
    scores: tl.tensor, v: tl.tensor, scale: tl.tensor, top: tl.tensor, total: tl.tensor,
    acc: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """A block's scores, -inf where a row does not see, folded into the triple of a span."""
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    base = finite(new_top)
    weights = tl.exp2(tl.fma(scores, scale, -base[:, None]))
    keep = tl.exp2(top - base)
    total = total * keep + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")
    return new_top, total, acc


@triton.jit
def _add_span(
    top: tl.tensor, total: tl.tensor, acc: tl.tensor, more: tl.tensor, more_total: tl.tensor,
    more_acc: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """The triple of a span folded into that of the spans before; any number of heads."""
    new_top = tl.maximum(top, more)
    base = finite(new_top)
    keep = tl.exp2(top - base)
    share = tl.exp2(more - base)
    total = total * keep + more_total * share
    acc = acc * keep[:, None] + more_acc * share[:, None]
    return new_top, total, acc


@triton.jit
def _nothing(M: tl.constexpr, D: tl.constexpr) -> tl.tensor:
    """The triple of a span of which nothing was seen."""
    top = tl.full((M,), float("-inf"), tl.float32)
    return top, tl.zeros((M,), tl.float32), tl.zeros((M, D), tl.float32)


@triton.jit
def _store(
    out: tl.tensor, first: tl.tensor, total: tl.tensor, acc: tl.tensor, is_stored: tl.tensor
) -> None:
    """Weighted sums over their weights, from the entry of each head on."""
    acc *= (1.0 / or_one(total))[:, None]
    at = first[:, None] + tl.arange(0, acc.shape[1])
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=is_stored)


@triton.jit
def _rows_of(
    item: tl.tensor, walks: tl.tensor, nth: tl.tensor, is_own: tl.tensor, HAS_TREE: tl.constexpr
) -> tl.tensor:
    """The rows of an item: they follow each other, or they stand on one path of a tree."""
    row = tl.load(item + ITEM_ROW) + nth
    if HAS_TREE:
        is_path = tl.load(item + IS_PATH) != 0
        at_order = (tl.load(item + ITEM_ORDER) + nth) * WALK_FIELDS + ORDER
        on_path = tl.load(walks + at_order, mask=is_own & is_path, other=0)
        row = tl.where(is_path, on_path, row)
    return row


@triton.jit(do_not_specialize=["n_spans"])
def exact_attend_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    part_sums: tl.tensor,
    items: tl.tensor,
    n_items: tl.tensor,
    taken: tl.tensor,
    paths: tl.tensor,
    walks: tl.tensor,
    positions: tl.tensor,
    kv_indices: tl.tensor,
    scale: tl.tensor,
    n_spans: tl.tensor,
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
    HAS_TREE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_CHAINED: tl.constexpr,
) -> None:
    """Programs take items of work, for some heads each; whoever is done takes the next.

    The long ones come first: with a share fixed beforehand a program of a long item had a short
    one too, where others had had a short one only (1 row at 32K, 49 instead of 39 µs).
    """
    if IS_CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    N_BLOCKS_OF_HEADS: tl.constexpr = N_HEADS // HEADS
    stacked = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    dim = tl.arange(0, BLOCK_D)
    is_dim = (dim < HEAD_DIM)[None, :]
    n_work = tl.load(n_items) * N_BLOCKS_OF_HEADS
    work = tl.program_id(0)
    while work < n_work:
        item = items + work // N_BLOCKS_OF_HEADS * ITEM_FIELDS
        first_row = tl.load(item + ITEM_ROW)
        tree = tl.load(item + ITEM_TREE)
        is_path = tl.load(item + IS_PATH) != 0
        first_block = tl.load(item + FIRST_BLOCK)
        masked_block = tl.load(item + MASKED_BLOCK)
        end_block = tl.load(item + END_BLOCK)
        part = tl.load(item + PART)
        slots = kv_indices + tl.load(item + ITEM_COLUMN)
        first_head = work % N_BLOCKS_OF_HEADS * HEADS
        is_own = stacked // HEADS < tl.load(item + ITEM_ROWS)
        row = _rows_of(item, walks, stacked // HEADS, is_own, HAS_TREE)
        head = first_head + stacked % HEADS
        at_query = (row.to(tl.int64) * query_row_stride + head * query_head_stride)[:, None] + dim
        q = tl.load(queries + at_query, mask=is_own[:, None] & is_dim, other=0.0)
        position = tl.load(positions + row, mask=is_own, other=-1).to(tl.int32)
        last = tl.max(position, 0)
        own_keys = keys + first_head // GROUP * kv_head_stride
        own_values = values + first_head // GROUP * kv_head_stride
        top, total, acc = _nothing(BLOCK_M, BLOCK_D)
        all_top, all_total, all_acc = _nothing(BLOCK_M, BLOCK_D)  # of the spans before
        for block in range(first_block, masked_block):
            column = block * BLOCK_N + columns
            place = (tl.load(slots + column) * slot_stride)[:, None] + dim[None, :]
            k = tl.load(own_keys + place, mask=is_dim, other=0.0)
            v = tl.load(own_values + place, mask=is_dim, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            top, total, acc = _fold(scores, v, scale, top, total, acc)
            if not IS_SPLIT and is_span_end(block * BLOCK_N + BLOCK_N):
                all_top, all_total, all_acc = _add_span(
                    all_top, all_total, all_acc, top, total, acc
                )
                top, total, acc = _nothing(BLOCK_M, BLOCK_D)
        for block in tl.range(masked_block, end_block, num_stages=1):
            column = block * BLOCK_N + columns
            is_live = column <= last
            found = column
            if HAS_TREE and is_path:
                # The keys of the path stand in the lanes of their positions.
                is_node = (column >= tree) & is_live
                at_path = paths + first_row * PATH + column - tree
                node = tl.load(at_path, mask=is_node, other=0)
                found = tl.where(is_node, tree + node, column)
            slot = tl.load(slots + found, mask=is_live, other=0)
            place = (slot * slot_stride)[:, None] + dim[None, :]
            # Zeros, not whatever a dead slot holds: zero weight times NaN is NaN.
            k = tl.load(own_keys + place, mask=is_live[:, None] & is_dim, other=0.0)
            v = tl.load(own_values + place, mask=is_live[:, None] & is_dim, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores = tl.where(column[None, :] <= position[:, None], scores, float("-inf"))
            top, total, acc = _fold(scores, v, scale, top, total, acc)
            if not IS_SPLIT and is_span_end(block * BLOCK_N + BLOCK_N):
                all_top, all_total, all_acc = _add_span(
                    all_top, all_total, all_acc, top, total, acc
                )
                top, total, acc = _nothing(BLOCK_M, BLOCK_D)
        if not IS_SPLIT:
            top, total, acc = _add_span(all_top, all_total, all_acc, top, total, acc)
        if not IS_SPLIT and part < 0:
            at_out = (row.to(tl.int64) * N_HEADS + head) * HEAD_DIM
            _store(out, at_out, total, acc, is_own[:, None] & is_dim)
        elif HAS_TREE or IS_SPLIT:
            at_part = (row.to(tl.int64) * n_spans + part) * N_HEADS + head
            tl.store(part_sums + at_part * 2, top, mask=is_own)
            tl.store(part_sums + at_part * 2 + 1, total, mask=is_own)
            at_value = at_part[:, None] * BLOCK_D + dim
            tl.store(parts + at_value, acc, mask=is_own[:, None])
        if n_work > tl.num_programs(0):
            work = tl.num_programs(0) + tl.atomic_add(taken, 1, sem="relaxed")
        else:
            work = n_work


@triton.jit(do_not_specialize=["n_spans"])
def exact_merge_kernel(
    parts: tl.tensor,
    part_sums: tl.tensor,
    out: tl.tensor,
    row_parts: tl.tensor,
    n_spans: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEADS: tl.constexpr,
    N_HEADS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    IS_CHAINED: tl.constexpr,
) -> None:
    """A row and some of its heads: its spans in the order of positions."""
    if IS_CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, BLOCK_D)
    top, total, acc = _nothing(HEADS, BLOCK_D)
    n_parts = tl.load(row_parts + row * ROW_FIELDS + N_PARTS)
    next_part = tl.load(row_parts + row * ROW_FIELDS + NEXT_PART)
    if n_parts < 0:
        return
    for first in range(0, tl.where(n_parts > 0, n_parts - next_part + 1, 0), AT_ONCE):
        # Unrolled: the reads of several spans are under way together. One behind the last is
        # a span of which nothing was seen.
        for ahead in tl.static_range(AT_ONCE):
            index = first + ahead
            span = tl.where(index == 0, 0, next_part + index - 1)
            is_part = (span < n_parts) & (head >= 0)
            at_part = (row * n_spans + span) * N_HEADS + head
            more = tl.load(part_sums + at_part * 2, mask=is_part, other=float("-inf"))
            more_total = tl.load(part_sums + at_part * 2 + 1, mask=is_part, other=0.0)
            at_value = at_part[:, None] * BLOCK_D + dim
            more_acc = tl.load(parts + at_value, mask=is_part[:, None], other=0.0)
            top, total, acc = _add_span(top, total, acc, more, more_total, more_acc)
    _store(out, (row * N_HEADS + head) * HEAD_DIM, total, acc, (dim < HEAD_DIM)[None, :])
