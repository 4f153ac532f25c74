"""Reference of graph replay: K11 and K12 static buffers, K13 active slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.reference.refusals import Refusals
from aerie.kernels.status import Status

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]
Hidden = NDArray[Any]


def draft_replay_input_operator(
    *,
    input_ids: Ints,
    positions: Ints,
    out_cache_loc: Slots,
    hidden: Hidden,
    seq_len: Ints,
    req_pool_indices: Ints,
    static_input_ids: Ints,
    static_positions: Ints,
    static_out_cache_loc: Slots,
    static_hidden: Hidden,
    static_seq_len: Ints,
    static_req_pool_indices: Ints,
    tree_width: int,
    buckets: tuple[int, ...],
    seq_len_fill: int,
) -> dict[str, Any]:
    """K11: one draft level into the smallest bucket, padding inert."""
    bucket = _smallest(buckets, len(seq_len))
    rows = bucket * tree_width
    _copy_padded(static_input_ids, input_ids, rows, 0)
    _copy_padded(static_positions, positions, rows, 0)
    _copy_padded(static_out_cache_loc, out_cache_loc, rows, 0)
    _copy_padded(static_hidden, hidden, rows, 0)
    _copy_padded(static_seq_len, seq_len, bucket, seq_len_fill)
    _copy_padded(static_req_pool_indices, req_pool_indices, bucket, 0)
    return {"bucket": bucket}


def check_extend_replay_input(*, input_ids: Ints, extend_len: Ints, **_: Any) -> dict[str, Any]:
    """K12, before anything is written: every request has rows, and they add up."""
    refusals = Refusals(len(extend_len))
    n_rows = len(input_ids)
    for b, length in enumerate(extend_len):
        if not 1 <= length <= n_rows:
            refusals.add(b, Status.OUT_OF_RANGE, int(length))
    if int(extend_len.sum()) != n_rows:
        for b in range(len(extend_len)):
            refusals.add(b, Status.BROKEN_LAYOUT, int(extend_len.sum()))
    return refusals.words()


def extend_replay_input_operator(
    *,
    input_ids: Ints,
    positions: Ints,
    out_cache_loc: Slots,
    hidden: Hidden,
    extend_len: Ints,
    seq_len: Ints,
    req_pool_indices: Ints,
    static_input_ids: Ints,
    static_positions: Ints,
    static_out_cache_loc: Slots,
    static_hidden: Hidden,
    static_extend_len: Ints,
    static_seq_len: Ints,
    static_req_pool_indices: Ints,
    static_qo_indptr: Slots,
    batch_buckets: tuple[int, ...],
    row_buckets: tuple[int, ...],
    seq_len_fill: int,
    status: NDArray[np.int32],
) -> dict[str, Any]:
    """K12: a ragged extend batch into the smallest (batch, rows) bucket, padding inert."""
    batch, n_rows = len(seq_len), len(input_ids)
    bucket = _smallest(batch_buckets, batch)
    row_bucket = _smallest(row_buckets, n_rows + bucket - batch)
    if not status.any():
        _copy_padded(static_input_ids, input_ids, row_bucket, 0)
        _copy_padded(static_positions, positions, row_bucket, 0)
        _copy_padded(static_out_cache_loc, out_cache_loc, row_bucket, 0)
        _copy_padded(static_hidden, hidden, row_bucket, 0)
        _copy_padded(static_extend_len, extend_len, bucket, 1)
        _copy_padded(static_seq_len, seq_len, bucket, seq_len_fill)
        _copy_padded(static_req_pool_indices, req_pool_indices, bucket, 0)
        static_qo_indptr[0] = 0
        static_qo_indptr[1 : bucket + 1] = np.cumsum(static_extend_len[:bucket])
    return {"bucket": bucket, "row_bucket": row_bucket}


def _smallest(buckets: tuple[int, ...], size: int) -> int:
    return next(bucket for bucket in buckets if bucket >= size)


def _copy_padded(static_out: NDArray[Any], values: NDArray[Any], size: int, fill: int) -> None:
    static_out[: len(values)] = values
    static_out[len(values) : size] = fill


def build_active_slots(
    *,
    finished: NDArray[np.bool_],
    seq_len: Ints,
    length_limit: Ints,
    eos_terminated: NDArray[np.bool_],
    accept_count: Ints | None = None,
    draft_tokens: Ints | None = None,
    ancestor_bits: NDArray[np.uint32] | None = None,
) -> dict[str, Any]:
    """K13: active slots to the front, their inverse, and dead slots emptied."""
    n_slots = len(finished)
    active = np.full(n_slots, -1, np.int32)
    inverse = np.full(n_slots, -1, np.int32)
    count = 0
    for slot in range(n_slots):
        if finished[slot] or eos_terminated[slot] or seq_len[slot] >= length_limit[slot]:
            for array, empty in ((accept_count, 0), (draft_tokens, -1), (ancestor_bits, 0)):
                if array is not None:
                    array[slot] = empty
            continue
        active[count] = slot
        inverse[slot] = count
        count += 1
    return {
        "active_slots": active,
        "active_inverse": inverse,
        "active_count": np.array([count], np.int32),
    }
