"""PyTorch memory kernels: K8 slot lists, K10a and K10b slot assignment."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.memory import DraftCacheLocs, KvIndices, TokenPool, WrittenSpans
from aerie.kernels.pytorch.ragged import SlotLists, at_least_one, check_table_span, offsets
from aerie.kernels.pytorch.refusals import Refusals
from aerie.kernels.status import Status

# Beyond every table, and far enough from int64's end that differences and sums stay exact.
_FAR = 1 << 40


@takes_call
def compute_kv_indices(call: KvIndices) -> dict[str, Tensor]:
    """K8: one slot list per request, or per (request, frontier slot) with its ancestor chain."""
    batch = call.seq_len.shape[0]
    refusals = Refusals(batch, call.seq_len.device)
    check_table_span(refusals, call, 0)
    prefix = call.seq_len.masked_fill(refusals.refused, 0)
    if call.tree_mask is None or call.fed_slots is None:
        asked = prefix.cumsum(0)
        refusals.add(Status.KV_CAPACITY, asked > call.kv_capacity, asked)
        length = prefix.masked_fill_(refusals.refused, 0)
        indptr = offsets(length)
        lists = SlotLists(call.req_to_token, call.req_pool_indices, length)
        indices = lists.flatten(indptr, call.kv_capacity)
        return {"kv_indptr": indptr.int(), "kv_indices": indices, **refusals.words()}

    width = call.tree_mask.shape[1]
    chain = call.tree_mask.cumsum(dim=2)  # [B, W, F] place of a fed node in its list, from 1
    length = chain[:, :, -1] + prefix[:, None]
    asked = length.sum(dim=1).masked_fill_(refusals.refused, 0).cumsum(0)
    refusals.add(Status.KV_CAPACITY, asked > call.kv_capacity, asked)
    ok = ~refusals.refused[:, None]  # [B, 1]
    indptr = offsets((length * ok).reshape(-1))
    prefixes = (prefix[:, None] * ok).expand(batch, width)
    pool_rows = call.req_pool_indices[:, None].expand(batch, width)
    lists = SlotLists(call.req_to_token, pool_rows.reshape(-1), prefixes.reshape(-1))
    # One entry more than asked for takes the nodes a slot does not see.
    indices = lists.flatten(indptr, call.kv_capacity + 1)
    first = (indptr[:-1].view(batch, width) + prefixes - 1)[:, :, None]
    entry = torch.where(call.tree_mask & ok[:, :, None], chain + first, call.kv_capacity)
    slots = call.fed_slots[:, None].expand_as(entry)
    indices.scatter_(0, entry.reshape(-1), slots.reshape(-1))
    return {
        "kv_indptr": indptr.int(),
        "kv_indices": indices[: call.kv_capacity],
        **refusals.words(),
    }


@takes_call
def check_assign_draft_cache_locs_operator(call: DraftCacheLocs) -> dict[str, Tensor]:
    """K10a, before anything is written."""
    refusals = _check_spans(call)
    n_slots = call.out_cache_loc.shape[1]
    needed = call.end - call.start
    refusals.add(Status.SLOT_CAPACITY, needed > n_slots, needed)
    if n_slots:
        steps = torch.arange(n_slots, device=call.start.device)
        # Slots that are not asked for count as 0, which is never refused.
        lowest = torch.where(steps < needed[:, None], call.out_cache_loc, 0).amin(dim=1)
        refusals.add(Status.BROKEN_LAYOUT, lowest < 0, lowest.long())
    return refusals.words()


@takes_call
def assign_draft_cache_locs_operator(call: DraftCacheLocs) -> dict[str, Tensor]:
    """K10a: row b of out_cache_loc goes to [start, end) of request b's table row."""
    steps = torch.arange(call.out_cache_loc.shape[1], device=call.start.device)
    position = call.start[:, None] + steps
    is_written = (position < call.end[:, None]) & (call.status == 0)[:, None]  # [B, T]
    rows = call.req_pool_indices[:, None].expand_as(position)
    _write(call.req_to_token, rows, position, call.out_cache_loc, is_written)
    return {}


@takes_call
def check_assign_req_to_token_pool_operator(call: TokenPool) -> dict[str, Tensor]:
    """K10b, before anything is written."""
    refusals = _check_spans(call)
    n_slots = call.out_cache_loc.shape[0]
    share = _share_bounds(call)
    refusals.add(Status.SLOT_CAPACITY, share[1:] > n_slots, share[1:])
    # [C+1] negative slots before each place, so that a share's own are a difference
    is_negative = call.out_cache_loc < 0
    negative = offsets(is_negative)
    before = negative.take(share.clamp(max=n_slots))
    place = torch.searchsorted(negative[1:], before[:-1], right=True).clamp_max_(n_slots - 1)
    slot = at_least_one(call.out_cache_loc).take(place.clamp_min_(0)).long()
    refusals.add(Status.BROKEN_LAYOUT, before[1:] > before[:-1], slot)
    return refusals.words()


@takes_call
def assign_req_to_token_pool_operator(call: TokenPool) -> dict[str, Tensor]:
    """K10b: each request's share of the flat slots goes to [start, end) of its table row."""
    batch, n_slots = call.start.shape[0], call.out_cache_loc.shape[0]
    if batch == 0:
        return {}
    share = _share_bounds(call)
    entries = torch.arange(n_slots, device=call.start.device)
    owner = torch.searchsorted(share[1:], entries, right=True).clamp_max_(batch - 1)
    is_written = (entries < share[-1]) & (call.status == 0).take(owner)
    position = (call.start - share[:-1]).take(owner) + entries
    rows = call.req_pool_indices.take(owner)
    _write(call.req_to_token, rows, position, call.out_cache_loc, is_written)
    return {}


def _share_bounds(call: TokenPool) -> Tensor:
    """Where each request's share of the flat slots begins, and where the last one ends. [B+1]"""
    return offsets((call.end.clamp(-_FAR, _FAR) - call.start.clamp(-_FAR, _FAR)).clamp_min_(0))


def _check_spans(call: WrittenSpans) -> Refusals:
    (n_requests, width), pool_row = call.req_to_token.shape, call.req_pool_indices
    start, end = call.start, call.end
    refusals = Refusals(start.shape[0], start.device)
    outside = (pool_row < 0) | (pool_row >= n_requests)
    refusals.add(Status.TABLE_ROW, outside, pool_row)
    past = (start < 0) | (end < start) | (end > width)
    refusals.add(Status.OUT_OF_RANGE, past, torch.where(start < 0, start, end))
    writes = end > start
    # [B, B] requests that write the same row, themselves included
    same = (pool_row[:, None] == pool_row) & writes
    refusals.add(Status.DUPLICATE_REQUEST, writes & (same.sum(dim=1) > 1), pool_row)
    return refusals


def _write(
    table_out: Tensor, rows: Tensor, columns: Tensor, slots: Tensor, is_written: Tensor
) -> None:
    """Write `slots` to (row, column) where `is_written`, and nothing elsewhere.

    An entry that is not written repeats the first one that is; if there is none, all put the
    corner's own slot back. Either way equal indices carry equal values, in any order.
    """
    if table_out.numel() == 0 or slots.numel() == 0:
        return
    flag = is_written.reshape(-1)
    first = flag.byte().argmax(dim=0, keepdim=True)
    is_any = flag.take(first)
    corner = table_out[:1, 0]
    row = torch.where(flag, rows.reshape(-1), torch.where(is_any, rows.take(first), 0))
    column = torch.where(flag, columns.reshape(-1), torch.where(is_any, columns.take(first), 0))
    slot = torch.where(flag, slots.reshape(-1), torch.where(is_any, slots.take(first), corner))
    table_out.index_put_((row, column), slot)
