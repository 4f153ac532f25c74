"""Rows of a round: which positions they stand at, which KV they read and write."""

from __future__ import annotations

from typing import Any

import torch

from aerie.attention.rows import MASK_WORDS, Bounds, Rows
from aerie.config import MAX_VERIFY
from aerie.engine.buckets import Bucket
from aerie.engine.parts import Parts
from aerie.engine.state import Chunk
from aerie.speculation.store import Accepted, Place


def verify_rows(parts: Parts, bucket: Bucket, layout: Any) -> Rows:
    """The chosen trees as rows of the target, then the bucket's padding."""
    state, n = parts.state, bucket.seats
    seq_len, table_row = state.seq_len[:n], state.seats("table_row", n)
    counts = layout.qo_indptr.diff().long()
    lists = parts.kernels["compute_kv_indices"](
        req_to_token=parts.table,
        req_pool_indices=table_row,
        seq_len=seq_len + counts,
        # One entry more than the lists: the inert request's own column.
        kv_capacity=1 + bucket.n_columns,
    )
    placed = parts.kernels["place_verify_rows"](
        draft_tokens=layout.draft_tokens,
        positions=layout.positions,
        qo_indptr=layout.qo_indptr,
        kv_indptr=lists.kv_indptr,
        seq_len=seq_len,
        kv_indices=lists.kv_indices,
    )
    last = None if parts.has_inert_request and bucket.is_padded else -1
    return Rows(
        tokens=placed.tokens,
        positions=layout.positions,
        kv_slots=placed.kv_slots,
        visible_prefix=placed.visible_prefix,
        ancestor_bits=layout.ancestor_bits.view(torch.int32),
        qo_indptr=placed.row_indptr[:last],
        kv_indptr=placed.column_indptr[:last],
        kv_indices=lists.kv_indices,
        column_positions=placed.column_positions,
        tree_start=placed.tree_start[:last],
        bounds=Bounds(
            _most_rows(parts, bucket), bucket.columns, min(bucket.rows, MAX_VERIFY), bucket.tile
        ),
    )


def _most_rows(parts: Parts, bucket: Bucket) -> int:
    """Rows of one request at most, not those of the whole batch."""
    if parts.has_inert_request:
        return bucket.rows  # the request that owns the padding may have nearly all of them
    n_verify = parts.state.store.sort_scores.shape[1]
    # Every seat verifies its root at least, so nobody can have the others' rows.
    return min(n_verify, bucket.rows - bucket.seats + 1)


def draft_place(parts: Parts, bucket: Bucket) -> Place:
    """Where a draft reads and writes its own KV."""
    state, n = parts.state, bucket.seats
    table_row, seq_len = state.seats("table_row", n), state.seq_len[:n]
    lengths = None if bucket.fit is None else bucket.fit.lengths
    return Place(parts.table, table_row, seq_len, bucket.columns, lengths)


def accepted_rows(parts: Parts, bucket: Bucket) -> Accepted:
    """What the last verification kept, for the draft to begin with."""
    state, kept, n = parts.state, parts.state.kept, bucket.seats
    is_wanted = state.seats("takes_drafts", n) & state.is_live[:n]
    counts = None if bucket.fit is None else bucket.fit.counts
    return Accepted(kept.tokens[:n], kept.taps[:n], kept.count[:n], is_wanted, counts)


def prompt_rows(parts: Parts, bucket: Bucket, chunk: Chunk) -> Rows:
    """A chunk of prompts as rows: each sees what stands before it."""
    n = bucket.seats
    qo_indptr, start = chunk.qo_indptr[: n + 1], chunk.start[:n]
    lists = parts.kernels["compute_kv_indices"](
        req_to_token=parts.table,
        req_pool_indices=chunk.table_row[:n],
        seq_len=start + qo_indptr.diff().long(),
        kv_capacity=1 + bucket.n_columns,
    )
    placed = parts.kernels["place_prompt_rows"](
        qo_indptr=qo_indptr,
        start=start,
        kv_indptr=lists.kv_indptr,
        kv_indices=lists.kv_indices,
        row_capacity=bucket.rows,
    )
    last = None if parts.has_inert_request and bucket.is_padded else -1
    device = start.device
    return Rows(
        tokens=chunk.tokens[: bucket.rows],
        positions=placed.positions,
        kv_slots=placed.kv_slots,
        visible_prefix=placed.visible_prefix,
        ancestor_bits=torch.zeros((bucket.rows, MASK_WORDS), dtype=torch.int32, device=device),
        qo_indptr=placed.row_indptr[:last],
        kv_indptr=placed.column_indptr[:last],
        kv_indices=lists.kv_indices,
        column_positions=placed.column_positions,
        tree_start=placed.tree_start[:last],
        bounds=Bounds(bucket.rows, bucket.columns),
    )
