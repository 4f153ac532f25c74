"""Reference of the memory kernels: K8 slot lists, K10a and K10b slot assignment."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.memory import DraftCacheLocs, KvIndices, TokenPool, WrittenSpans
from aerie.kernels.numpy_types import Int32s
from aerie.kernels.reference.ragged import table_span
from aerie.kernels.reference.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def compute_kv_indices(call: KvIndices) -> dict[str, Any]:
    """K8: one slot list per request, or per (request, frontier slot) with its ancestor chain."""
    batch = len(call.seq_len)
    width = 1 if call.tree_mask is None else call.tree_mask.shape[1]
    refusals = Refusals(batch)
    indptr = np.zeros(batch * width + 1, np.int32)
    indices = np.full(call.kv_capacity, -1, np.int32)
    asked = 0
    for b in range(batch):
        prefix = table_span(refusals, b, call, 0)
        lists = [prefix] * width
        if call.tree_mask is not None and call.fed_slots is not None:
            lists = [np.concatenate([prefix, call.fed_slots[b][row]]) for row in call.tree_mask[b]]
        if not refusals.refused(b):
            asked += sum(len(slots) for slots in lists)
            if asked > call.kv_capacity:
                refusals.add(b, Status.KV_CAPACITY, asked)
        for t, slots in enumerate(lists):
            first = int(indptr[b * width + t])
            taken = slots[:0] if refusals.refused(b) else slots
            indices[first : first + len(taken)] = taken
            indptr[b * width + t + 1] = first + len(taken)
    return {"kv_indptr": indptr, "kv_indices": indices, **refusals.words()}


@takes_call
def check_assign_draft_cache_locs_operator(call: DraftCacheLocs) -> dict[str, Any]:
    """K10a, before anything is written."""
    refusals = _check_spans(call)
    for b in range(len(call.start)):
        needed = int(call.end[b]) - int(call.start[b])
        if needed > call.out_cache_loc.shape[1]:
            refusals.add(b, Status.SLOT_CAPACITY, needed)
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
            refusals.add(b, Status.SLOT_CAPACITY, share.stop)
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
            refusals.add(b, Status.TABLE_ROW, int(pool_row))
        if not 0 <= start[b] <= end[b] <= width:
            refusals.add(b, Status.OUT_OF_RANGE, int(start[b] if start[b] < 0 else end[b]))
        if end[b] > start[b] and writers.count(int(pool_row)) > 1:
            refusals.add(b, Status.DUPLICATE_REQUEST, int(pool_row))
    return refusals


def _check_slots(refusals: Refusals, b: int, slots: Int32s) -> None:
    for slot in slots[slots < 0]:
        refusals.add(b, Status.BROKEN_LAYOUT, int(slot))
