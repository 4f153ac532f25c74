"""Reference checks of the ragged row layout and of the request-to-slot table."""

from __future__ import annotations

import numpy as np

from aerie.kernels.call import InTable
from aerie.kernels.cards.axes import MAX_VERIFY
from aerie.kernels.numpy_types import Int32s
from aerie.kernels.reference.refusals import Refusals
from aerie.kernels.status import Status


def request_rows(
    refusals: Refusals,
    b: int,
    qo_indptr: Int32s,
    n_rows: int,
    most: int = MAX_VERIFY,
) -> range:
    """Flat rows of a request; a falling or overrunning indptr refuses it and yields none.

    Rows before one an earlier request already had count as falling: no row has two owners.
    """
    first, end = int(qo_indptr[b]), int(qo_indptr[b + 1])
    if not 0 <= first <= end <= n_rows or first < qo_indptr[: b + 1].max():
        refusals.add(b, Status.BROKEN_LAYOUT, end)
        return range(0)
    if end - first > most:
        refusals.add(b, Status.ROW_CAPACITY, end - first)
        return range(0)
    return range(first, end)


def table_span(refusals: Refusals, b: int, call: InTable, n_rows: int) -> Int32s:
    """Slots of positions [0, seq_len + n_rows); a span outside the table refuses the request."""
    n_requests, width = call.req_to_token.shape
    pool_row, seq_len = int(call.req_pool_indices[b]), int(call.seq_len[b])
    if not 0 <= pool_row < n_requests:
        refusals.add(b, Status.TABLE_ROW, pool_row)
        return np.zeros(0, np.int32)
    if seq_len < 0:
        refusals.add(b, Status.NEGATIVE_LENGTH, seq_len)
        return np.zeros(0, np.int32)
    if seq_len + n_rows > width:
        refusals.add(b, Status.OUT_OF_RANGE, seq_len + n_rows)
        return np.zeros(0, np.int32)
    return call.req_to_token[pool_row, : seq_len + n_rows]
