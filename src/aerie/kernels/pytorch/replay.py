"""PyTorch graph replay: K11 and K12 static buffers, K13 active slots."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.replay import ROW_ARRAYS, ActiveSlots, DraftReplay, ExtendReplay
from aerie.kernels.pytorch.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def draft_replay_input_operator(call: DraftReplay) -> dict[str, Any]:
    """K11: one draft level into the smallest bucket, padding inert."""
    bucket = _smallest(call.buckets, call.seq_len.shape[0])
    rows = bucket * call.tree_width
    for name in ROW_ARRAYS:
        _copy_padded(getattr(call, f"static_{name}")[:rows], getattr(call, name), 0)
    _copy_padded(call.static_seq_len[:bucket], call.seq_len, call.seq_len_fill)
    _copy_padded(call.static_req_pool_indices[:bucket], call.req_pool_indices, 0)
    return {"bucket": bucket}


def _smallest(buckets: tuple[int, ...], size: int) -> int:
    return next(bucket for bucket in buckets if bucket >= size)


def _copy_padded(static_out: Tensor, values: Tensor, fill: int) -> None:
    size = values.shape[0]
    static_out[:size].copy_(values)
    if size < static_out.shape[0]:
        static_out[size:].fill_(fill)


@takes_call
def check_extend_replay_input_operator(call: ExtendReplay) -> dict[str, Tensor]:
    """K12, before anything is written: every request has rows, and they add up."""
    batch, n_rows = call.extend_len.shape[0], call.input_ids.shape[0]
    refusals = Refusals(batch, call.extend_len.device)
    is_outside = (call.extend_len < 1) | (call.extend_len > n_rows)
    refusals.add(Status.OUT_OF_RANGE, is_outside, call.extend_len)
    total = call.extend_len.sum().expand(batch)
    refusals.add(Status.BROKEN_LAYOUT, total != n_rows, total)
    return refusals.words()


@takes_call
def extend_replay_input_operator(call: ExtendReplay) -> dict[str, Any]:
    """K12: a ragged extend batch into the smallest (batch, rows) bucket, padding inert."""
    batch, n_rows = call.seq_len.shape[0], call.input_ids.shape[0]
    bucket = _smallest(call.batch_buckets, batch)
    row_bucket = _smallest(call.row_buckets, n_rows + bucket - batch)
    ok = (call.status == 0).all()  # one refused request keeps everything as it was
    for name in ROW_ARRAYS:
        _put_padded(getattr(call, f"static_{name}")[:row_bucket], getattr(call, name), 0, ok)
    _put_padded(call.static_extend_len[:bucket], call.extend_len, 1, ok)
    _put_padded(call.static_seq_len[:bucket], call.seq_len, call.seq_len_fill, ok)
    _put_padded(call.static_req_pool_indices[:bucket], call.req_pool_indices, 0, ok)
    call.static_qo_indptr[:1].masked_fill_(ok, 0)
    ends = call.static_extend_len[:bucket].cumsum(0, dtype=torch.int32)
    _put_padded(call.static_qo_indptr[1 : bucket + 1], ends, 0, ok)
    return {"bucket": bucket, "row_bucket": row_bucket}


def _put_padded(static_out: Tensor, values: Tensor, fill: int, ok: Tensor) -> None:
    """Copy and pad if the 0-d `ok` holds; otherwise write back what is there."""
    size = values.shape[0]
    torch.where(ok, values, static_out[:size], out=static_out[:size])
    if size < static_out.shape[0]:
        static_out[size:].masked_fill_(ok, fill)


@takes_call
def build_active_slots(call: ActiveSlots) -> dict[str, Tensor]:
    """K13: active slots to the front, their inverse, and dead slots emptied."""
    n_slots = call.finished.shape[0]
    device = call.finished.device
    dead = call.finished | call.eos_terminated | (call.seq_len >= call.length_limit)
    rank = (~dead).cumsum(0)  # [S] active slots up to and including this one
    # One entry more than there are slots takes the dead ones.
    active = torch.full((n_slots + 1,), -1, dtype=torch.int32, device=device)
    slots = torch.arange(n_slots, dtype=torch.int32, device=device)
    active.scatter_(0, (rank - 1).masked_fill_(dead, n_slots), slots)
    if call.accept_count is not None:
        call.accept_count.masked_fill_(dead, 0)
    if call.draft_tokens is not None:
        call.draft_tokens.masked_fill_(dead[:, None], -1)
    if call.ancestor_bits is not None:
        # Few operations know uint32; zero is the same bits in int32.
        call.ancestor_bits.view(torch.int32).masked_fill_(dead[:, None, None], 0)
    return {
        "active_slots": active[:n_slots],
        "active_inverse": (rank.int() - 1).masked_fill_(dead, -1),
        "active_count": (~dead).sum(dtype=torch.int32).view(1),
    }
