"""Ragged rows, slot lists and sibling checks that several PyTorch kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from aerie.kernels.call import InTable
from aerie.kernels.cards.axes import INT64_MAX, MAX_VERIFY
from aerie.kernels.pytorch.refusals import Refusals, first_true
from aerie.kernels.status import Status


@dataclass(frozen=True)
class Spans:
    """The flat rows of each request: `count[b]` rows from `first[b]`; none where refused."""

    first: Tensor  # [B]
    count: Tensor  # [B]
    n_rows: int

    @cached_property
    def slots(self) -> Tensor:
        """0, 1, ... for the most rows a request can have here, at least one. [Q]"""
        size = max(1, min(MAX_VERIFY, self.n_rows))
        return torch.arange(size, device=self.first.device)

    @cached_property
    def is_row(self) -> Tensor:
        """Which of the slots are rows of the request. [B, Q]"""
        return self.slots < self.count[:, None]

    @cached_property
    def flat(self) -> Tensor:
        """Flat row of each slot, some row of the buffer where the slot is none. [B, Q]"""
        return (self.first[:, None] + self.slots).clamp_max_(max(self.n_rows - 1, 0))

    @cached_property
    def inside(self) -> Tensor:
        """Which flat rows belong to each request. [B, R]

        A broken indptr may leave two whole requests with common rows, so that a row alone does
        not tell its request.
        """
        from_first = torch.arange(self.n_rows, device=self.first.device) - self.first[:, None]
        return (from_first >= 0) & (from_first < self.count[:, None])

    def owners(self) -> Tensor:
        """The last request that holds each flat row, -1 for none. [R]; needs B at least 1."""
        batch = self.first.shape[0]
        ids = torch.arange(1, batch + 1, device=self.first.device)[:, None]
        return (self.inside * ids).amax(dim=0) - 1

    def refuse_rows(self, refusals: Refusals, code: Status, is_bad: Tensor) -> None:
        """Refuse requests that hold a bad row of `is_bad[R]`, R at least 1; value = the row."""
        found = self.inside & is_bad
        refusals.add(code, found.any(dim=1), first_true(found))


def request_spans(
    refusals: Refusals, qo_indptr: Tensor, n_rows: int, most: int = MAX_VERIFY
) -> Spans:
    """Rows of each request; a falling or overrunning indptr, or too many rows, leaves none."""
    bounds = qo_indptr.long()
    first, end = bounds[:-1], bounds[1:]
    count = end - first
    # Rows that an earlier request already had count as falling: no row has two owners.
    highest = bounds.cummax(0).values[:-1]
    broken = (torch.minimum(first, count) < 0) | (end > n_rows) | (first < highest)
    refusals.add(Status.BROKEN_LAYOUT, broken, end)
    if most < n_rows:
        refusals.add(Status.ROW_CAPACITY, count > most, count)
    return Spans(
        first.masked_fill(refusals.refused, 0), count.masked_fill(refusals.refused, 0), n_rows
    )


def at_least_one(rows: Tensor) -> Tensor:
    """`rows` itself, or one row of zeros where there is none: an index must point at something."""
    return rows if rows.shape[0] else rows.new_zeros((1, *rows.shape[1:]))


def offsets(counts: Tensor) -> Tensor:
    """Running sum with a leading zero, int64. [n] -> [n+1]"""
    sums = torch.zeros(counts.shape[0] + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=sums[1:])
    return sums


def check_table_span(refusals: Refusals, call: InTable, count: Tensor | int) -> None:
    """Refuse requests whose table row, or positions [0, seq_len + count), do not exist."""
    (n_requests, width), pool_row = call.req_to_token.shape, call.req_pool_indices
    seq_len = call.seq_len
    outside = (pool_row < 0) | (pool_row >= n_requests)
    refusals.add(Status.TABLE_ROW, outside, pool_row)
    refusals.add(Status.NEGATIVE_LENGTH, seq_len < 0, seq_len)
    # Not seq_len + count > width: that sum may pass int64, and names its end then.
    end = seq_len.clamp_max(INT64_MAX - count) + count
    refusals.add(Status.OUT_OF_RANGE, seq_len > width - count, end)


@dataclass(frozen=True)
class SlotLists:
    """Runs of a request-to-slot table: `length[i]` slots of row `pool_row[i]` from `start[i]`."""

    table: Tensor  # [P, L]
    pool_row: Tensor  # [n]
    length: Tensor  # [n]
    start: Tensor | int = 0  # [n]

    def flatten(self, indptr: Tensor, size: int) -> Tensor:
        """All runs, run i at `indptr[i]`, in a buffer of `size` whose rest is -1. int32 [size]

        A run may be shorter than its share of the buffer.
        """
        n_lists = self.length.shape[0]
        if self.table.numel() == 0 or n_lists == 0 or size == 0:
            return torch.full((size,), -1, dtype=torch.int32, device=self.table.device)
        entries = torch.arange(size, device=self.table.device)
        owner = torch.searchsorted(indptr[1:], entries, right=True).clamp_max_(n_lists - 1)
        step = entries.sub_(indptr.take(owner))
        beyond = step >= self.length.take(owner)
        if isinstance(self.start, Tensor):
            step += self.start.take(owner)
        rows = self.pool_row.clamp(0, self.table.shape[0] - 1).take(owner)
        return self.table[rows, step.clamp_(0, self.table.shape[1] - 1)].masked_fill_(beyond, -1)


def repeated_sibling(parent: Tensor, tokens: Tensor, is_node: Tensor) -> tuple[Tensor, Tensor]:
    """Whether two nodes of a request share parent and token, and such a token. [B, n] -> [B], [B]

    `parent` is at least -1 where there is a node.
    """
    batch, size = tokens.shape
    if size < 2:
        none = torch.zeros(batch, dtype=torch.bool, device=tokens.device)
        return none, none.long()
    # Others than nodes get parents of their own.
    own = torch.arange(-2, -2 - size, -1, device=tokens.device)
    # By token, then stably by parent: nodes that share both become neighbours.
    by_token, order = tokens.sort(dim=1, stable=True)
    group, order = torch.where(is_node, parent, own).gather(1, order).sort(dim=1, stable=True)
    ordered = by_token.gather(1, order)
    is_twin = (group[:, 1:] == group[:, :-1]) & (ordered[:, 1:] == ordered[:, :-1])
    twin = ordered.gather(1, first_true(is_twin)[:, None])
    return is_twin.any(dim=1), twin[:, 0]
