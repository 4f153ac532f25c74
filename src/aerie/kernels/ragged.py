"""Ragged rows and runs of the slot table that kernels of the NumPy backends share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import InTable
from aerie.kernels.cards.axes import INT64_MAX, MAX_VERIFY
from aerie.kernels.numpy_types import Int32s, Ints
from aerie.kernels.refusals import Refusals, outside
from aerie.kernels.status import Status


@dataclass(frozen=True)
class Spans:
    """The rows of each request: `count[b]` flat rows from `first[b]`; none where refused.

    The rows of all requests one after another are *entries*; where no request is refused and no
    row is left over, entry and flat row are the same number.
    """

    first: Ints  # [B]
    count: Ints  # [B]
    is_whole: bool

    @cached_property
    def offsets(self) -> Ints:
        """First entry of each request, and their number. [B+1]"""
        return running(self.count)

    @cached_property
    def owner(self) -> Ints:
        """Request of each entry. [T]"""
        return np.repeat(np.arange(len(self.count)), self.count)

    @cached_property
    def base(self) -> Ints:
        """The entry at which each entry's request begins. [T]"""
        return np.repeat(self.offsets[:-1], self.count)

    @cached_property
    def entries(self) -> Ints:
        """0, 1, ... [T]"""
        return np.arange(self.offsets.item(-1))

    @cached_property
    def flat(self) -> Ints:
        """Flat row of each entry. [T]"""
        if self.is_whole:
            return self.entries
        return self.entries + np.repeat(self.first - self.offsets[:-1], self.count)

    def ranges(self) -> list[range]:
        """The flat rows of each request, as Python numbers."""
        own = zip(self.first.tolist(), self.count.tolist(), strict=True)
        return [range(first, first + count) for first, count in own]

    def of(self, rows: NDArray[Any]) -> NDArray[Any]:
        """`rows[R]` by entry. [T]"""
        return rows if self.is_whole else rows[self.flat]


def request_spans(
    refusals: Refusals, qo_indptr: Int32s, n_rows: int, most: int = MAX_VERIFY
) -> Spans:
    """Rows of each request; a falling or overrunning indptr, or too many rows, leaves none."""
    bounds = qo_indptr.astype(np.int64)
    first, count = bounds[:-1], np.subtract(bounds[1:], bounds[:-1])
    if not len(count):
        return Spans(first, count, n_rows == 0)
    low, high = bounds.item(0), bounds.item(-1)
    is_falling = low < 0 or high > n_rows or count.min() < 0
    if not is_falling and count.max() <= most:
        return Spans(first, count, low == 0 and high == n_rows)
    # A row before one that an earlier request already had counts as falling: one owner each.
    highest = np.maximum.accumulate(bounds)[:-1]
    is_broken = (first < 0) | (count < 0) | (bounds[1:] > n_rows) | (first < highest)
    refusals.add(Status.BROKEN_LAYOUT, is_broken, bounds[1:])
    refusals.add(Status.ROW_CAPACITY, count > most, count)
    is_kept = refusals.status == 0
    return Spans(first * is_kept, count * is_kept, False)


def check_table_span(refusals: Refusals, call: InTable, count: Ints | int) -> None:
    """Refuse requests whose table row, or positions [0, seq_len + count), do not exist."""
    (n_requests, width), pool_row = call.req_to_token.shape, call.req_pool_indices
    seq_len = call.seq_len
    refusals.add(Status.TABLE_ROW, outside(pool_row, n_requests), pool_row)
    refusals.add(Status.NEGATIVE_LENGTH, seq_len < 0, seq_len)
    # Not seq_len + count > width: that sum may pass int64, and names its end then.
    is_past = seq_len > width - count
    if is_past.any():
        ends = np.add(np.minimum(seq_len, INT64_MAX - count), count)
        refusals.add(Status.OUT_OF_RANGE, is_past, ends)


def running(counts: Ints) -> Ints:
    """Running sum with a leading zero. [n] -> [n+1]"""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.add.accumulate(counts, out=sums[1:])
    return sums


def filled(values: NDArray[Any], capacity: int, fill: int, dtype: Any) -> NDArray[Any]:
    """`values[n, ...]` at the front of a buffer of `capacity` whose rest is `fill`."""
    if len(values) == capacity and values.dtype == dtype:
        return values
    buffer = np.full((capacity, *values.shape[1:]), fill, dtype)
    buffer[: len(values)] = values
    return buffer


def joined(lists: list[Int32s], capacity: int) -> Int32s:
    """Slot lists one after another in a buffer of `capacity` whose rest is -1."""
    flat = np.concatenate(lists) if lists else np.zeros(0, np.int32)
    return filled(flat, capacity, -1, np.int32)


@cache
def _counting(bits: int) -> Int32s:
    numbers = np.arange(1 << bits, dtype=np.int32)
    numbers.flags.writeable = False
    return numbers


def counted(start: int, stop: int) -> Int32s:
    """start, start + 1, ... as a view of numbers that are kept."""
    return _counting(max(stop, 1).bit_length())[start:stop]
