"""Refusals that several cards decide, as the words of `status.py`."""

from __future__ import annotations

from amaranth.hdl import Mux, Value

from aerie.fpga.rtl.card import CardEngine
from aerie.kernels.status import Status

MAX_VERIFY = 128

OUT_OF_RANGE = int(Status.OUT_OF_RANGE)
ROW_CAPACITY = int(Status.ROW_CAPACITY)
KV_CAPACITY = int(Status.KV_CAPACITY)
MASK_CAPACITY = int(Status.MASK_CAPACITY)
BROKEN_LAYOUT = int(Status.BROKEN_LAYOUT)
BROKEN_TREE = int(Status.BROKEN_TREE)
TOO_DEEP = int(Status.TOO_DEEP)
TABLE_ROW = int(Status.TABLE_ROW)
NEGATIVE_LENGTH = int(Status.NEGATIVE_LENGTH)
NOT_INJECTIVE = int(Status.NOT_INJECTIVE)


def table_refusal(card: CardEngine, pool: Value, prefix: Value, rows: Value) -> Value:
    """A row of the slot table must exist and have the columns [0, prefix + rows)."""
    n_rows, width = card.argument("P")[0:32], card.argument("L")[0:32]
    is_outside = (pool < 0) | (pool >= n_rows)
    is_long = prefix > width - rows
    return Mux(
        is_outside,
        TABLE_ROW,
        Mux(prefix < 0, NEGATIVE_LENGTH, Mux(is_long, OUT_OF_RANGE, 0)),
    )
