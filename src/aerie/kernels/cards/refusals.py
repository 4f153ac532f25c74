"""Refusals that several cards share: of ragged rows, and of the request-to-slot table."""

from __future__ import annotations

from aerie.kernels.card import Refusal
from aerie.kernels.cards.axes import MAX_VERIFY
from aerie.kernels.status import Status

BROKEN_LAYOUT = Refusal(
    Status.BROKEN_LAYOUT, "R", "qo_indptr falls below an earlier entry, or passes the rows"
)
MANY_ROWS = Refusal(Status.ROW_CAPACITY, str(MAX_VERIFY), "more than 128 rows in one request")
NO_SUCH_ROW = Refusal(Status.TABLE_ROW, "P", "req_pool_indices names no row of the table")
NEGATIVE_LENGTH = Refusal(Status.NEGATIVE_LENGTH, "0", "seq_len is negative")
PAST_TABLE = Refusal(Status.OUT_OF_RANGE, "L", "seq_len + rows passes the table")
OF_TABLE = (NO_SUCH_ROW, NEGATIVE_LENGTH, PAST_TABLE)
