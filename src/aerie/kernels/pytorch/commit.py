"""PyTorch K7: clip the accepted runs, compact the batch, plan the KV moves."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.commit import VerifyResult
from aerie.kernels.pytorch.ragged import (
    SlotLists,
    at_least_one,
    check_table_span,
    offsets,
    request_spans,
)
from aerie.kernels.pytorch.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def update_verify_result(call: VerifyResult) -> dict[str, Tensor]:
    """K7: emitted tokens, kept rows, finished and unfinished requests, KV moves, freed slots."""
    batch, run = call.accept_index.shape
    n_rows = call.draft_tokens.shape[0]
    device = call.accept_index.device
    steps = torch.arange(run, device=device)  # [D+1]
    refusals = Refusals(batch, device)
    spans = request_spans(refusals, call.qo_indptr, n_rows)
    is_outside = (call.accept_count < 0) | (call.accept_count >= run)
    refusals.add(Status.TOO_DEEP, is_outside, call.accept_count)
    _check_path(refusals, call, spans.count, steps)
    check_table_span(refusals, call, spans.count)
    live = ~refusals.refused & (spans.count > 0)  # [B]

    # [B, D+1] flat row of every path entry; some row of the buffer beyond the path
    path = (call.accept_index + spans.first[:, None]).clamp_(0, max(n_rows - 1, 0))
    accepted = at_least_one(call.draft_tokens).take(path[:, 1:])
    # Token k is the k-th accepted one, and the bonus once those are used up.
    tokens = torch.cat([accepted, call.bonus_token[:, None]], dim=1)
    tokens = torch.where(steps < call.accept_count[:, None], tokens, call.bonus_token[:, None])
    is_stop = ((tokens[:, :, None] == call.stop_tokens[:, None]).any(dim=2)) & (tokens >= 0)
    is_stop &= steps <= call.accept_count[:, None]
    # run stands for a run without a stop token
    until_stop = torch.where(is_stop, steps + 1, run + 1).amin(dim=1)
    # seq_len tokens and the root are committed already. A limit below 0 is none at all, and its
    # difference might wrap.
    room = (call.length_limit.clamp_min(0) - call.seq_len - 1).clamp_min_(0)
    n_emitted = torch.minimum(torch.minimum(call.accept_count + 1, until_stop), room)
    finished = live & ((until_stop == n_emitted) | (n_emitted == room))
    n_emitted = n_emitted * live
    # The bonus has no KV yet; the root always has.
    n_kept = (torch.minimum(n_emitted, call.accept_count) + 1) * live
    goes_on = live & ~finished

    out_indptr = offsets(n_emitted)
    rows_indptr = offsets(n_kept * goes_on)
    is_emitted = steps < n_emitted[:, None]
    is_kept = steps < n_kept[:, None]
    moves = is_kept & (call.accept_index != steps)
    kv_src, kv_dst = _moved_slots(call)
    n_freed = (spans.count - n_kept) * live
    freed = SlotLists(call.req_to_token, call.req_pool_indices, n_freed, call.seq_len + n_kept)
    free_indptr = offsets(n_freed)
    ids = torch.arange(batch, device=device)
    return {
        "out_tokens": _pack(tokens, is_emitted, batch * run),
        "out_indptr": out_indptr.int(),
        "out_rows": _pack(path, is_kept & goes_on[:, None], batch * run),
        "rows_indptr": rows_indptr.int(),
        "new_seq_len": call.seq_len + n_kept,
        "finished": finished,
        "unfinished": _pack(ids, goes_on, batch),
        "unfinished_count": _total(goes_on),
        "kv_src": _pack(kv_src, moves, batch * run),
        "kv_dst": _pack(kv_dst, moves, batch * run),
        "move_count": _total(moves),
        "free": freed.flatten(free_indptr, n_rows),
        "free_count": free_indptr[-1:].int(),
        **refusals.words(),
    }


def _check_path(refusals: Refusals, call: VerifyResult, count: Tensor, steps: Tensor) -> None:
    """Refuse paths that do not ascend from row 0 within the request; no rows, no path."""
    accept_index = call.accept_index
    last_step = call.accept_count.clamp(0, steps.shape[0] - 1)
    last = accept_index.gather(1, last_step[:, None])[:, 0]
    is_on_path = steps[1:] <= last_step[:, None]
    falls = (is_on_path & (accept_index[:, 1:] <= accept_index[:, :-1])).any(dim=1)
    is_broken = falls | (accept_index[:, 0] != 0) | (last >= count)
    refusals.add(Status.BROKEN_TREE, is_broken & (count > 0), last)


def _moved_slots(call: VerifyResult) -> tuple[Tensor, Tensor]:
    """Slot each path entry is read from and the one it belongs to; anything if there is none."""
    table, accept_index, seq_len = call.req_to_token, call.accept_index, call.seq_len
    if table.numel() == 0:
        none = torch.zeros_like(accept_index, dtype=torch.int32)
        return none, none
    rows = call.req_pool_indices.clamp(0, table.shape[0] - 1)[:, None]
    steps = torch.arange(accept_index.shape[1], device=table.device)
    last = table.shape[1] - 1
    source = table[rows, (accept_index + seq_len[:, None]).clamp_(0, last)]
    target = table[rows, (steps + seq_len[:, None]).clamp_(0, last)]
    return source, target


def _pack(values: Tensor, is_taken: Tensor, capacity: int) -> Tensor:
    """Taken values in order at the front of a buffer whose rest is -1. [capacity]"""
    flag = is_taken.reshape(-1)
    # One entry more than asked for takes what is not taken.
    place = torch.where(flag, flag.cumsum(0) - 1, capacity)
    packed = torch.full((capacity + 1,), -1, dtype=values.dtype, device=values.device)
    return packed.scatter_(0, place, values.reshape(-1))[:capacity]


def _total(flags: Tensor) -> Tensor:
    return flags.sum(dtype=torch.int32).view(1)
