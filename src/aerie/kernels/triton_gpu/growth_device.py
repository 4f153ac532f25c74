"""Device functions of the drafting kernels: check a layer, store it, keep the order, weigh it."""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels.cards import growth
from aerie.kernels.triton_gpu.device import (
    BROKEN_TREE,
    DUPLICATE_SIBLING,
    FAR,
    OUT_OF_RANGE,
    first_where,
    order_key,
    rank_descending,
    refuse,
)

# Captured runs discount stored scores from depth 2 on by this factor (compat mode).
COMPAT_DISCOUNT = tl.constexpr(growth.COMPAT_DISCOUNT)


@triton.jit
def path_scores(probas, last_scores, request, width, top_k, C: tl.constexpr):
    """K1's scores: float32(min(max(p, 0), 1) * parent), NaN read as 0. [C], 0 past the layer"""
    here = tl.arange(0, C)
    n_candidates = width * top_k
    is_entry = here < n_candidates
    p = tl.load(probas + request * n_candidates + here, mask=is_entry, other=0.0)
    p = tl.where(p == p, p, 0.0)
    p = tl.minimum(tl.maximum(p, 0.0), 1.0)
    parent = tl.load(last_scores + request * width + here // top_k, mask=is_entry, other=0.0)
    return p * parent


@triton.jit
def check_frontier(status, detail, frontier, request, width, count, W: tl.constexpr):
    """Refuse frontier ids that are no nodes yet, and a node that stands there twice."""
    slot = tl.arange(0, W)
    is_slot = slot < width
    ids = tl.load(frontier + request * width + slot, mask=is_slot, other=0)
    is_outside, outside = first_where(is_slot & ((ids < 0) | (ids >= count)), ids, W)
    status, detail = refuse(status, detail, OUT_OF_RANGE, is_outside, outside)
    is_twin = (ids[:, None] == ids[None, :]) & (slot[:, None] < slot[None, :])
    is_twin &= is_slot[:, None] & is_slot[None, :]
    twin = tl.min(tl.min(tl.where(is_twin, ids[:, None], FAR), axis=1), axis=0)
    return refuse(status, detail, BROKEN_TREE, twin < FAR, twin)


@triton.jit
def check_siblings(status, detail, tokens, slot, is_entry, C: tl.constexpr):
    """Refuse a frontier slot that proposes one token twice; value = its smallest twin."""
    here = tl.arange(0, C)
    is_twin = (tokens[:, None] == tokens[None, :]) & (slot[:, None] == slot[None, :])
    is_twin &= (here[:, None] < here[None, :]) & is_entry[:, None] & is_entry[None, :]
    has_twin = tl.max(is_twin.to(tl.int32), axis=1) > 0
    first_slot = tl.min(tl.where(has_twin, slot, C), axis=0)
    twin = tl.min(tl.where(has_twin & (slot == first_slot), tokens, FAR), axis=0)
    return refuse(status, detail, DUPLICATE_SIBLING, first_slot < C, twin)


@triton.jit
def store_nodes(
    stores,
    strides,
    request,
    is_ok,
    scores,
    tokens,
    frontier,
    width,
    top_k,
    count,
    COMPAT: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
):
    """Write the layer's nodes and links, and each frontier node's first child.

    `stores` are tokens, scores, depths, parents, first children and siblings, `strides` their rows.
    """
    here = tl.arange(0, C)
    is_written = (here < width * top_k) & is_ok
    parent = tl.load(frontier + request * width + here // top_k, mask=is_written, other=0)
    depth = tl.load(stores[2] + request * strides[2] + parent, mask=is_written, other=0) + 1
    if COMPAT:
        scores = tl.where(depth > 1, scores * COMPAT_DISCOUNT, scores)
    node = count + here
    following = tl.where(here % top_k < top_k - 1, node + 1, -1).to(tl.int64)
    none = tl.full([C], -1, tl.int64)
    tl.store(stores[0] + request * strides[0] + node, tokens, mask=is_written)
    tl.store(stores[1] + request * strides[1] + node, scores, mask=is_written)
    tl.store(stores[2] + request * strides[2] + node, depth, mask=is_written)
    tl.store(stores[3] + request * strides[3] + node, parent, mask=is_written)
    tl.store(stores[4] + request * strides[4] + node, none, mask=is_written)
    tl.store(stores[5] + request * strides[5] + node, following, mask=is_written)
    # New nodes are no frontier nodes, so this meets none of the entries above.
    slot = tl.arange(0, W)
    is_slot = (slot < width) & is_ok
    ids = tl.load(frontier + request * width + slot, mask=is_slot, other=0)
    first_child = (count + slot * top_k).to(tl.int64)
    tl.store(stores[4] + request * strides[4] + ids, first_child, mask=is_slot)


@triton.jit
def merge_scores(
    sort_scores,
    sort_stride,
    work_scores,
    request,
    is_ok,
    layer,
    rank,
    is_entry,
    best,
    top_k,
    n_old,
    n_new,
    K: tl.constexpr,
    M: tl.constexpr,
    WORK: tl.constexpr,
):
    """Emit `work_scores`, then keep the first `n_new` of the old order merged with the layer's.

    `layer[C]` are this layer's scores in any order, `rank[C]` their places in descending order.
    WORK is for K2 by itself, which takes old scores in any order; a round's are sorted.
    """
    place = tl.arange(0, M)
    is_old = place < n_old
    row = sort_scores + request * sort_stride
    old = tl.load(row + place, mask=is_old, other=0.0)
    old_rank = place
    if WORK:
        old_rank = rank_descending(old, is_old, M)
        child = tl.arange(0, K)
        work_row = work_scores + request * (n_old + top_k)
        tl.store(work_row + place, tl.where(is_ok, old, 0.0), mask=is_old)
        tl.store(work_row + n_old + child, tl.where(is_ok, best, 0.0), mask=child < top_k)
    # Two descending runs: an entry's place is its own plus what of the other run comes first.
    old_key = order_key(old)
    layer_key = order_key(layer)
    above = (layer_key[None, :] > old_key[:, None]) & is_entry[None, :]
    old_place = old_rank + tl.sum(above.to(tl.int32), axis=1)
    at_least = (old_key[:, None] >= layer_key[None, :]) & is_old[:, None]
    layer_place = rank + tl.sum(at_least.to(tl.int32), axis=0)
    # Every thread must have read the old order before any of it is overwritten.
    tl.debug_barrier()
    tl.store(row + old_place, old, mask=is_old & (old_place < n_new) & is_ok)
    tl.store(row + layer_place, layer, mask=is_entry & (layer_place < n_new) & is_ok)


@triton.jit
def write_mask(
    mask_in,
    mask_out,
    request,
    is_ok,
    parent_slot,
    width,
    top_k,
    columns,
    fed_count,
    K: tl.constexpr,
    F: tl.constexpr,
):
    """The parent's row of the draft's mask, and column `fed_count + i` for child i."""
    child = tl.arange(0, K)
    column = tl.arange(0, F)
    is_inside = (child < top_k)[:, None] & (column < columns)[None, :]
    source = mask_in + (request * width + parent_slot)[:, None] * columns + column[None, :]
    seen = tl.load(source, mask=is_inside & is_ok, other=0)
    own = column[None, :] == (fed_count + child)[:, None]
    seen = tl.where(own & is_ok, 1, seen).to(tl.uint8)
    target = mask_out + (request * top_k + child)[:, None] * columns + column[None, :]
    tl.store(target, seen, mask=is_inside)


@triton.jit
def gains_of(old_row, best, rank, n_old, top_k, n_free, is_row):
    """K3's increments: each new score fills a free slot or displaces the smallest old one kept.

    `old_row` points at a descending run of `n_old` scores, `best` are the new ones in order; both
    may be one request's or, as columns and rows, those of a batch.
    """
    n_met = tl.minimum(top_k - n_free, n_old)
    is_meeting = (rank >= n_free) & (rank < n_free + n_met) & is_row
    # A free slot holds nothing to displace.
    met = tl.load(old_row + (n_old - 1 - (rank - n_free)), mask=is_meeting, other=0.0)
    met = met.to(tl.float64)
    new = best.to(tl.float64)
    # NaN is above nothing, and gains nothing.
    return tl.where((new > met) & (rank < n_free + n_met) & is_row, new - met, 0.0)


@triton.jit
def write_gains(increments, gains_out, batch, top_k, K: tl.constexpr):
    """G from the increments of every request `[B, K]`: float64 sums, rounded once."""
    rank = tl.arange(0, K)
    total = tl.cumsum(tl.sum(increments, axis=0), axis=0) / tl.maximum(batch, 1).to(tl.float64)
    tl.store(gains_out + 1 + rank, total.to(tl.float32), mask=rank < top_k)
    tl.store(gains_out, 0.0)
