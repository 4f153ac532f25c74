"""Rows of a round: which positions they stand at, which KV they read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.attention.rows import MASK_WORDS, Bounds, PackedMask, Rows
from aerie.config import MAX_VERIFY
from aerie.engine.buckets import Bucket
from aerie.engine.parts import Parts
from aerie.engine.state import Chunk
from aerie.speculation.store import Accepted, Place


@dataclass(frozen=True, eq=False)
class Texts:
    """Where the texts of a batch lie in a pool, and how long they are there."""

    table: Tensor  # [requests, positions] i32
    rows: Tensor  # [B] i64, of the table
    seq_len: Tensor  # [B] i64

    @classmethod
    def of(cls, parts: Parts, n: int) -> Texts:
        """The texts of the first seats, whole."""
        return cls(parts.table, parts.state.seats("table_row", n), parts.state.seq_len[:n])


def verify_rows(parts: Parts, bucket: Bucket, layout: Any, texts: Texts) -> Rows:
    """The chosen trees as rows of the target, then the bucket's padding."""
    kernels, seq_len, mask = parts.kernels, texts.seq_len, None
    table = {
        "req_to_token": texts.table,
        "req_pool_indices": texts.rows,
        # One entry more than the lists: the inert request's own column.
        "kv_capacity": 1 + bucket.n_columns,
    }
    if bucket.fit is None or seq_len.is_cuda:
        # The mask of a bucket would be as long as the bucket, and a GPU reads bits of a tree.
        ends = seq_len + layout.qo_indptr[1:] - layout.qo_indptr[:-1]
        lists = kernels["compute_kv_indices"](seq_len=ends, **table)
    else:
        lists = kernels["fused_tree_mask_operator"](
            seq_len=seq_len,
            qo_indptr=layout.qo_indptr,
            ancestor_bits=layout.ancestor_bits,
            mask_capacity=bucket.mask_bytes,
            **table,
        )
        mask = PackedMask(lists.packed_mask, lists.mask_indptr)
    placed = kernels["place_verify_rows"](
        draft_tokens=layout.draft_tokens,
        positions=layout.positions,
        qo_indptr=layout.qo_indptr,
        kv_indptr=lists.kv_indptr,
        seq_len=seq_len,
        kv_indices=lists.kv_indices,
    )
    tree = min(bucket.rows, MAX_VERIFY)
    return Rows(
        tokens=placed.tokens,
        positions=layout.positions,
        ancestor_bits=layout.ancestor_bits.view(torch.int32),
        bounds=Bounds(_most_rows(parts, bucket), bucket.columns, tree, bucket.tile),
        mask=mask,
        **_placed(parts, bucket, lists, placed),
    )


def owners(qo_indptr: Tensor, n_rows: int) -> Tensor:
    """The request of each row [n_rows] i64, the last one's for padding."""
    row = torch.arange(n_rows, device=qo_indptr.device)
    found = torch.searchsorted(qo_indptr[1:].long(), row, right=True)
    return found.clamp_max(qo_indptr.shape[0] - 2)


def _most_rows(parts: Parts, bucket: Bucket) -> int:
    """Rows of one request at most, not those of the whole batch."""
    if parts.has_inert_request:
        return bucket.rows  # the request that owns the padding may have nearly all of them
    n_verify = parts.state.store.sort_scores.shape[1]
    # Every seat verifies its root at least, so no seat can have the others' rows.
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
    return Rows(
        tokens=chunk.tokens[: bucket.rows],
        positions=placed.positions,
        ancestor_bits=start.new_zeros((bucket.rows, MASK_WORDS), dtype=torch.int32),
        bounds=Bounds(bucket.rows, bucket.columns),
        **_placed(parts, bucket, lists, placed),
    )


def _placed(parts: Parts, bucket: Bucket, lists: Any, placed: Any) -> dict[str, Any]:
    """What rows of both kinds share, with the request that owns the padding if there is one."""
    last = None if parts.has_inert_request and bucket.is_padded else -1
    return {
        "kv_slots": placed.kv_slots,
        "visible_prefix": placed.visible_prefix,
        "qo_indptr": placed.row_indptr[:last],
        "kv_indptr": placed.column_indptr[:last],
        "kv_indices": lists.kv_indices,
        "column_positions": placed.column_positions,
        "tree_start": placed.tree_start[:last],
    }
