"""Device functions that several Triton kernels share: order, first offender, ragged layout."""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels.status import Status

OUT_OF_RANGE = tl.constexpr(Status.OUT_OF_RANGE.value)
ROW_CAPACITY = tl.constexpr(Status.ROW_CAPACITY.value)
KV_CAPACITY = tl.constexpr(Status.KV_CAPACITY.value)
MASK_CAPACITY = tl.constexpr(Status.MASK_CAPACITY.value)
SLOT_CAPACITY = tl.constexpr(Status.SLOT_CAPACITY.value)
TOO_DEEP = tl.constexpr(Status.TOO_DEEP.value)
DUPLICATE_SIBLING = tl.constexpr(Status.DUPLICATE_SIBLING.value)
NOT_FINITE = tl.constexpr(Status.NOT_FINITE.value)
ALL_MASKED = tl.constexpr(Status.ALL_MASKED.value)
BROKEN_TREE = tl.constexpr(Status.BROKEN_TREE.value)
BROKEN_LAYOUT = tl.constexpr(Status.BROKEN_LAYOUT.value)
BAD_PARAMETER = tl.constexpr(Status.BAD_PARAMETER.value)
TABLE_ROW = tl.constexpr(Status.TABLE_ROW.value)
CANDIDATE = tl.constexpr(Status.CANDIDATE.value)
NEGATIVE_LENGTH = tl.constexpr(Status.NEGATIVE_LENGTH.value)
# The largest int64: no index passes it, and no token.
FAR = tl.constexpr((1 << 63) - 1)


@triton.jit
def order_key(x):
    """int32 in the order of the floats: one key for both zeros, NaN below everything."""
    # Minus zero plus zero is zero.
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    # As sign and magnitude: of negative numbers the larger bits are the smaller number.
    return tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x7FFFFFFF)


@triton.jit
def rank_descending(values, is_entry, BLOCK: tl.constexpr):
    """Place of every entry of `values[BLOCK]` in descending order, the lower index first on ties.

    A comparison of all pairs: right for any number of entries, and no step waits for another.
    """
    here = tl.arange(0, BLOCK)
    key = order_key(values)
    before = key[None, :] > key[:, None]
    before |= (key[None, :] == key[:, None]) & (here[None, :] < here[:, None])
    before &= is_entry[None, :]
    return tl.sum(before.to(tl.int32), axis=1)


@triton.jit
def at_rank(values, rank, is_entry, N_RANKS: tl.constexpr):
    """The entry of `values[BLOCK]` that holds each of the first ranks. [N_RANKS]"""
    wanted = tl.arange(0, N_RANKS)
    is_there = (rank[None, :] == wanted[:, None]) & is_entry[None, :]
    return tl.sum(tl.where(is_there, values[None, :], 0), axis=1)


@triton.jit
def first_where(flag, value, BLOCK: tl.constexpr):
    """Whether any of `flag[BLOCK]` holds, and the value at the first that does."""
    here = tl.arange(0, BLOCK)
    first = tl.min(tl.where(flag, here, BLOCK), axis=0)
    return first < BLOCK, tl.sum(tl.where(here == first, value, 0), axis=0)


@triton.jit
def refuse(status, detail, code, applies, value):
    """Status word and detail after one more check; an earlier refusal stays."""
    is_new = applies & (status == 0)
    return tl.where(is_new, code, status), tl.where(is_new, value, detail)


@triton.jit
def end_of(length, count):
    """length + count, a number that a message names; int64's largest where the sum passes it."""
    return tl.minimum(length, -count + FAR) + count


@triton.jit
def request_span(qo_indptr, request, n_rows, most, BATCH: tl.constexpr, MOST: tl.constexpr):
    """First row, row count, status and detail of one request; no rows where it is refused.

    Rows before one an earlier request already had count as falling: no row has two owners.
    """
    entries = tl.arange(0, BATCH)
    earlier = tl.load(qo_indptr + entries, mask=entries <= request, other=-1)
    highest = tl.max(earlier, axis=0).to(tl.int64)
    first = tl.load(qo_indptr + request).to(tl.int64)
    end = tl.load(qo_indptr + request + 1).to(tl.int64)
    is_broken = (first < 0) | (end < first) | (end > n_rows) | (first < highest)
    status = tl.where(is_broken, BROKEN_LAYOUT, 0)
    detail = tl.where(is_broken, end, 0)
    if MOST:
        status, detail = refuse(status, detail, ROW_CAPACITY, end - first > most, end - first)
    count = tl.where(status == 0, end - first, 0)
    return tl.where(status == 0, first, 0), count, status, detail


@triton.jit
def owner_of(row, qo_indptr, batch, BATCH: tl.constexpr):
    """The first request whose span holds a flat row, or BATCH.

    In a broken layout later requests may claim the row too, but those are refused: a request
    that stands has no row that an earlier one claims.
    """
    lane = tl.arange(0, BATCH)
    first = tl.load(qo_indptr + lane, mask=lane < batch, other=0)
    end = tl.load(qo_indptr + lane + 1, mask=lane < batch, other=0)
    return tl.min(tl.where((first <= row) & (row < end), lane, BATCH), axis=0)


@triton.jit
def best_of(value, ids, best, best_id):
    """The larger of a running best and a block's, the lower id on ties; NaN is never best."""
    top = tl.max(tl.where(value == value, value, float("-inf")), axis=0)
    top_id = tl.min(tl.where(value == top, ids, 2147483647), axis=0)
    return tl.maximum(best, top), tl.where(top > best, top_id, best_id)
