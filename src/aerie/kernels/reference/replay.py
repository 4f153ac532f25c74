"""Reference of graph replay: K11 and K12 static buffers, K13 active slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards.replay import ROW_ARRAYS, ActiveSlots, DraftReplay, ExtendReplay
from aerie.kernels.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def draft_replay_input_operator(call: DraftReplay) -> dict[str, Any]:
    """K11: one draft level into the smallest bucket, padding inert."""
    bucket = _smallest(call.buckets, len(call.seq_len))
    rows = bucket * call.tree_width
    _copy_batch(call, rows, bucket)
    return {"bucket": bucket}


@takes_call
def check_extend_replay_input_operator(call: ExtendReplay) -> dict[str, Any]:
    """K12, before anything is written: every request has rows, and they add up."""
    refusals = Refusals(len(call.extend_len))
    n_rows = len(call.input_ids)
    for b, length in enumerate(call.extend_len):
        if not 1 <= length <= n_rows:
            refusals.refuse(b, Status.OUT_OF_RANGE, int(length))
    if int(call.extend_len.sum()) != n_rows:
        for b in range(len(call.extend_len)):
            refusals.refuse(b, Status.BROKEN_LAYOUT, int(call.extend_len.sum()))
    return refusals.words()


@takes_call
def extend_replay_input_operator(call: ExtendReplay) -> dict[str, Any]:
    """K12: a ragged extend batch into the smallest (batch, rows) bucket, padding inert."""
    batch, n_rows = len(call.seq_len), len(call.input_ids)
    bucket = _smallest(call.batch_buckets, batch)
    row_bucket = _smallest(call.row_buckets, n_rows + bucket - batch)
    if not call.status.any():
        _copy_batch(call, row_bucket, bucket)
        _copy_padded(call.static_extend_len, call.extend_len, bucket, 1)
        call.static_qo_indptr[0] = 0
        call.static_qo_indptr[1 : bucket + 1] = np.cumsum(call.static_extend_len[:bucket])
    return {"bucket": bucket, "row_bucket": row_bucket}


def _smallest(buckets: tuple[int, ...], size: int) -> int:
    return next(bucket for bucket in buckets if bucket >= size)


def _copy_batch(call: DraftReplay | ExtendReplay, n_rows: int, n_requests: int) -> None:
    """What both kernels copy: the rows, and the requests that they are of."""
    for name in ROW_ARRAYS:
        _copy_padded(getattr(call, f"static_{name}"), getattr(call, name), n_rows, 0)
    _copy_padded(call.static_seq_len, call.seq_len, n_requests, call.seq_len_fill)
    _copy_padded(call.static_req_pool_indices, call.req_pool_indices, n_requests, 0)


def _copy_padded(static_out: NDArray[Any], values: NDArray[Any], size: int, fill: int) -> None:
    static_out[: len(values)] = values
    static_out[len(values) : size] = fill


@takes_call
def build_active_slots(call: ActiveSlots) -> dict[str, Any]:
    """K13: active slots to the front, their inverse, and dead slots emptied."""
    n_slots = len(call.finished)
    is_dead = call.finished | call.eos_terminated | (call.seq_len >= call.length_limit)
    for array, empty in ((call.accept_count, 0), (call.draft_tokens, -1), (call.ancestor_bits, 0)):
        if array is not None:
            array[is_dead] = empty
    alive = np.nonzero(~is_dead)[0]
    active, inverse = np.full(n_slots, -1, np.int32), np.full(n_slots, -1, np.int32)
    active[: len(alive)] = alive
    inverse[alive] = np.arange(len(alive))
    return {
        "active_slots": active,
        "active_inverse": inverse,
        "active_count": np.array([len(alive)], np.int32),
    }
