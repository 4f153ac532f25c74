"""Reference of the memory kernels: K8 slot lists, K10a and K10b slot assignment."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.memory import DraftCacheLocs, KvIndices, TokenPool, WrittenSpans
from aerie.kernels.numpy_types import Int32s
from aerie.kernels.ragged import check_table_span, joined, running
from aerie.kernels.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def compute_kv_indices(call: KvIndices) -> dict[str, Any]:
    """K8: one slot list per request, or per (request, frontier slot) with its ancestor chain."""
    batch = len(call.seq_len)
    refusals = Refusals(batch)
    check_table_span(refusals, call, 0)
    # [B, W] length of each list
    lengths = call.seq_len[:, None]
    if call.tree_mask is not None:
        lengths = lengths + np.add.reduce(call.tree_mask, axis=2, dtype=np.int64)
    if refusals.found:
        lengths = lengths * (refusals.status == 0)[:, None]
    asked = np.add.reduce(lengths, axis=1).cumsum()
    if batch and asked.item(-1) > call.kv_capacity:
        refusals.add(Status.KV_CAPACITY, asked > call.kv_capacity, asked)
        lengths = lengths * (refusals.status == 0)[:, None]
    lists = []
    for request, (row, length) in enumerate(
        zip(call.req_pool_indices.tolist(), call.seq_len.tolist(), strict=True)
    ):
        if refusals.found and refusals.status[request]:
            continue
        prefix = call.req_to_token[row, :length]
        if call.tree_mask is None or call.fed_slots is None:
            lists.append(prefix)
            continue
        for is_seen in call.tree_mask[request]:
            lists += [prefix, call.fed_slots[request][is_seen]]
    return {
        "kv_indptr": running(lengths.reshape(-1)).astype(np.int32),
        "kv_indices": joined(lists, call.kv_capacity),
        **refusals.words(),
    }


@takes_call
def check_assign_draft_cache_locs_operator(call: DraftCacheLocs) -> dict[str, Any]:
    """K10a, before anything is written."""
    refusals = _check_spans(call)
    for b in range(len(call.start)):
        needed = int(call.end[b]) - int(call.start[b])
        if needed > call.out_cache_loc.shape[1]:
            refusals.refuse(b, Status.SLOT_CAPACITY, needed)
        _check_slots(refusals, b, call.out_cache_loc[b, : max(needed, 0)])
    return refusals.words()


@takes_call
def assign_draft_cache_locs_operator(call: DraftCacheLocs) -> dict[str, Any]:
    """K10a: row b of out_cache_loc goes to [start, end) of request b's table row."""
    _write(call, list(call.out_cache_loc))
    return {}


@takes_call
def check_assign_req_to_token_pool_operator(call: TokenPool) -> dict[str, Any]:
    """K10b, before anything is written."""
    refusals = _check_spans(call)
    for b, share in enumerate(_shares(call)):
        if share.stop > len(call.out_cache_loc):
            refusals.refuse(b, Status.SLOT_CAPACITY, share.stop)
        _check_slots(refusals, b, call.out_cache_loc[share])
    return refusals.words()


@takes_call
def assign_req_to_token_pool_operator(call: TokenPool) -> dict[str, Any]:
    """K10b: each request's share of the flat slots goes to [start, end) of its table row."""
    _write(call, [call.out_cache_loc[share] for share in _shares(call)])
    return {}


def _write(call: DraftCacheLocs | TokenPool, slots: list[Int32s]) -> None:
    """The first slots of each request's own go to its span, unless it is refused."""
    for b, own in enumerate(slots):
        if not call.status[b]:
            start, end = int(call.start[b]), int(call.end[b])
            call.req_to_token[call.req_pool_indices[b], start:end] = own[: end - start]


def _shares(call: TokenPool) -> list[slice]:
    # Python's integers: what a refused request asks for may pass int64.
    sizes = [max(int(e) - int(s), 0) for s, e in zip(call.start, call.end, strict=True)]
    bounds = list(accumulate(sizes, initial=0))
    return [slice(*pair) for pair in pairwise(bounds)]


def _check_spans(call: WrittenSpans) -> Refusals:
    start, end = call.start, call.end
    n_requests, width = call.req_to_token.shape
    refusals = Refusals(len(start))
    writers = call.req_pool_indices[end > start].tolist()
    for b, pool_row in enumerate(call.req_pool_indices):
        if not 0 <= pool_row < n_requests:
            refusals.refuse(b, Status.TABLE_ROW, int(pool_row))
        if not 0 <= start[b] <= end[b] <= width:
            refusals.refuse(b, Status.OUT_OF_RANGE, int(start[b] if start[b] < 0 else end[b]))
        if end[b] > start[b] and writers.count(int(pool_row)) > 1:
            refusals.refuse(b, Status.DUPLICATE_REQUEST, int(pool_row))
    return refusals


def _check_slots(refusals: Refusals, b: int, slots: Int32s) -> None:
    for slot in slots[slots < 0]:
        refusals.refuse(b, Status.BROKEN_LAYOUT, int(slot))
