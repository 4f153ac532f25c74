"""PyTorch graph replay: K11 and K12 static buffers, K13 active slots."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aerie.kernels.pytorch.refusals import Refusals
from aerie.kernels.status import Status


def draft_replay_input_operator(
    *,
    input_ids: Tensor,
    positions: Tensor,
    out_cache_loc: Tensor,
    hidden: Tensor,
    seq_len: Tensor,
    req_pool_indices: Tensor,
    static_input_ids: Tensor,
    static_positions: Tensor,
    static_out_cache_loc: Tensor,
    static_hidden: Tensor,
    static_seq_len: Tensor,
    static_req_pool_indices: Tensor,
    tree_width: int,
    buckets: tuple[int, ...],
    seq_len_fill: int,
) -> dict[str, Any]:
    """K11: one draft level into the smallest bucket, padding inert."""
    bucket = _smallest(buckets, seq_len.shape[0])
    rows = bucket * tree_width
    _copy_padded(static_input_ids[:rows], input_ids, 0)
    _copy_padded(static_positions[:rows], positions, 0)
    _copy_padded(static_out_cache_loc[:rows], out_cache_loc, 0)
    _copy_padded(static_hidden[:rows], hidden, 0)
    _copy_padded(static_seq_len[:bucket], seq_len, seq_len_fill)
    _copy_padded(static_req_pool_indices[:bucket], req_pool_indices, 0)
    return {"bucket": bucket}


def _smallest(buckets: tuple[int, ...], size: int) -> int:
    return next(bucket for bucket in buckets if bucket >= size)


def _copy_padded(static_out: Tensor, values: Tensor, fill: int) -> None:
    size = values.shape[0]
    static_out[:size].copy_(values)
    if size < static_out.shape[0]:
        static_out[size:].fill_(fill)


def check_extend_replay_input(
    *, input_ids: Tensor, extend_len: Tensor, **_: object
) -> dict[str, Tensor]:
    """K12, before anything is written: every request has rows, and they add up."""
    batch, n_rows = extend_len.shape[0], input_ids.shape[0]
    refusals = Refusals(batch, extend_len.device)
    is_outside = (extend_len < 1) | (extend_len > n_rows)
    refusals.add(Status.OUT_OF_RANGE, is_outside, extend_len)
    total = extend_len.sum().expand(batch)
    refusals.add(Status.BROKEN_LAYOUT, total != n_rows, total)
    return refusals.words()


def extend_replay_input_operator(
    *,
    input_ids: Tensor,
    positions: Tensor,
    out_cache_loc: Tensor,
    hidden: Tensor,
    extend_len: Tensor,
    seq_len: Tensor,
    req_pool_indices: Tensor,
    static_input_ids: Tensor,
    static_positions: Tensor,
    static_out_cache_loc: Tensor,
    static_hidden: Tensor,
    static_extend_len: Tensor,
    static_seq_len: Tensor,
    static_req_pool_indices: Tensor,
    static_qo_indptr: Tensor,
    batch_buckets: tuple[int, ...],
    row_buckets: tuple[int, ...],
    seq_len_fill: int,
    status: Tensor,
) -> dict[str, Any]:
    """K12: a ragged extend batch into the smallest (batch, rows) bucket, padding inert."""
    batch, n_rows = seq_len.shape[0], input_ids.shape[0]
    bucket = _smallest(batch_buckets, batch)
    row_bucket = _smallest(row_buckets, n_rows + bucket - batch)
    ok = (status == 0).all()  # one refused request keeps everything as it was
    _put_padded(static_input_ids[:row_bucket], input_ids, 0, ok)
    _put_padded(static_positions[:row_bucket], positions, 0, ok)
    _put_padded(static_out_cache_loc[:row_bucket], out_cache_loc, 0, ok)
    _put_padded(static_hidden[:row_bucket], hidden, 0, ok)
    _put_padded(static_extend_len[:bucket], extend_len, 1, ok)
    _put_padded(static_seq_len[:bucket], seq_len, seq_len_fill, ok)
    _put_padded(static_req_pool_indices[:bucket], req_pool_indices, 0, ok)
    static_qo_indptr[:1].masked_fill_(ok, 0)
    ends = static_extend_len[:bucket].cumsum(0, dtype=torch.int32)
    _put_padded(static_qo_indptr[1 : bucket + 1], ends, 0, ok)
    return {"bucket": bucket, "row_bucket": row_bucket}


def _put_padded(static_out: Tensor, values: Tensor, fill: int, ok: Tensor) -> None:
    """Copy and pad if the 0-d `ok` holds; otherwise write back what is there."""
    size = values.shape[0]
    torch.where(ok, values, static_out[:size], out=static_out[:size])
    if size < static_out.shape[0]:
        static_out[size:].masked_fill_(ok, fill)


def build_active_slots(
    *,
    finished: Tensor,
    seq_len: Tensor,
    length_limit: Tensor,
    eos_terminated: Tensor,
    accept_count: Tensor | None = None,
    draft_tokens: Tensor | None = None,
    ancestor_bits: Tensor | None = None,
) -> dict[str, Tensor]:
    """K13: active slots to the front, their inverse, and dead slots emptied."""
    n_slots = finished.shape[0]
    device = finished.device
    dead = finished | eos_terminated | (seq_len >= length_limit)
    rank = (~dead).cumsum(0)  # [S] active slots up to and including this one
    # One entry more than there are slots takes the dead ones.
    active = torch.full((n_slots + 1,), -1, dtype=torch.int32, device=device)
    slots = torch.arange(n_slots, dtype=torch.int32, device=device)
    active.scatter_(0, (rank - 1).masked_fill_(dead, n_slots), slots)
    if accept_count is not None:
        accept_count.masked_fill_(dead, 0)
    if draft_tokens is not None:
        draft_tokens.masked_fill_(dead[:, None], -1)
    if ancestor_bits is not None:
        # Few operations know uint32; zero is the same bits in int32.
        ancestor_bits.view(torch.int32).masked_fill_(dead[:, None, None], 0)
    return {
        "active_slots": active[:n_slots],
        "active_inverse": (rank.int() - 1).masked_fill_(dead, -1),
        "active_count": (~dead).sum(dtype=torch.int32).view(1),
    }
