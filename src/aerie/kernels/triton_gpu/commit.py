"""Triton K7: measure every accepted run, then write what the batch emits, keeps and frees."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_BATCH, MAX_VERIFY
from aerie.kernels.cards.commit import VerifyResult
from aerie.kernels.triton_gpu.device import (
    BROKEN_TREE,
    NEGATIVE_LENGTH,
    OUT_OF_RANGE,
    TABLE_ROW,
    TOO_DEEP,
    end_of,
    refuse,
    request_span,
)
from aerie.kernels.triton_gpu.launch import block, contiguous, words

FILL_BLOCK = 1024
# What the first launch notes of a request, one column each.
_NOTES = 6
FIRST, EMITTED, KEPT, GOES_ON, MOVED, FREED = (tl.constexpr(i) for i in range(_NOTES))


@triton.jit
def _is_moved(index, step, n_kept):
    return (step < n_kept) & (index != step)


@triton.jit
def _run_tokens(index, tokens, bonus, first, n_accepted, D: tl.constexpr):
    """Emitted token k: the k-th accepted one, and the bonus once those are used up. [D]"""
    step = tl.arange(0, D)
    following = tl.load(index + step + 1, mask=step < n_accepted, other=0)
    token = tl.load(tokens + first + following, mask=step < n_accepted, other=0)
    return tl.where(step < n_accepted, token, bonus)


@triton.jit(do_not_specialize=("run", "n_rows", "n_table", "width", "n_stops"))
def _measure_kernel(
    index, accepted, bonus_token, tokens, qo_indptr, seq_len, length_limit, stops, pool_row,
    notes, seq_out, finished_out, status_out, detail_out, run, n_rows, n_table, width, n_stops,
    N: tl.constexpr, B: tl.constexpr, Q: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Check one request, clip its run, note how much it emits, keeps, moves and frees."""
    request = tl.program_id(0)
    first, count, status, detail = request_span(qo_indptr, request, n_rows, Q, B, True)
    n_accepted = tl.load(accepted + request)
    status, detail = refuse(
        status, detail, TOO_DEEP, (n_accepted < 0) | (n_accepted >= run), n_accepted
    )
    step = tl.arange(0, D)
    last_step = tl.minimum(tl.maximum(n_accepted, 0), run - 1)
    row = index + request * run
    entry = tl.load(row + step, mask=step < run, other=0)
    before = tl.load(row + step - 1, mask=(step > 0) & (step < run), other=-1)
    last = tl.load(row + last_step)
    falls = tl.max(((step > 0) & (step <= last_step) & (entry <= before)).to(tl.int32), axis=0) > 0
    is_broken = falls | (tl.load(row) != 0) | (last >= count)
    status, detail = refuse(status, detail, BROKEN_TREE, is_broken & (count > 0), last)
    table_row = tl.load(pool_row + request)
    length = tl.load(seq_len + request)
    status, detail = refuse(
        status, detail, TABLE_ROW, (table_row < 0) | (table_row >= n_table), table_row
    )
    status, detail = refuse(status, detail, NEGATIVE_LENGTH, length < 0, length)
    is_past = length > width - count
    status, detail = refuse(status, detail, OUT_OF_RANGE, is_past, end_of(length, count))
    is_live = (status == 0) & (count > 0)
    n_accepted = tl.where(is_live, n_accepted, 0)

    token = _run_tokens(row, tokens, tl.load(bonus_token + request), first, n_accepted, D)
    is_stop = tl.zeros([D], tl.int32)
    # Unrolled, so that no stop waits for the load of the one before.
    for stop in tl.range(n_stops, loop_unroll_factor=8):
        is_stop |= (token == tl.load(stops + request * n_stops + stop)).to(tl.int32)
    is_stop = (is_stop > 0) & (token >= 0) & (step <= n_accepted)
    until_stop = tl.min(tl.where(is_stop, step + 1, run + 1), axis=0)
    # seq_len tokens and the root are committed already. A limit below 0 is none at all, and its
    # difference might wrap.
    room = tl.maximum(tl.maximum(tl.load(length_limit + request), 0) - length - 1, 0)
    n_emitted = tl.minimum(tl.minimum(n_accepted + 1, until_stop), room)
    is_last = is_live & ((until_stop == n_emitted) | (n_emitted == room))
    n_emitted = tl.where(is_live, n_emitted, 0)
    # The bonus has no KV yet; the root always has.
    n_kept = tl.where(is_live, tl.minimum(n_emitted, n_accepted) + 1, 0)
    n_moved = tl.sum(_is_moved(entry, step, n_kept).to(tl.int32), axis=0)
    note = notes + request * N
    tl.store(note + FIRST, first.to(tl.int32))
    tl.store(note + EMITTED, n_emitted.to(tl.int32))
    tl.store(note + KEPT, n_kept.to(tl.int32))
    tl.store(note + GOES_ON, (is_live & (is_last == 0)).to(tl.int32))
    tl.store(note + MOVED, n_moved)
    tl.store(note + FREED, tl.where(is_live, count - n_kept, 0).to(tl.int32))
    tl.store(seq_out + request, length + n_kept)
    tl.store(finished_out + request, is_last.to(tl.uint8))
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)


@triton.jit
def _before(values, lane, request):
    """Sum of `values` of the requests before one."""
    return tl.sum(tl.where(lane < request, values, 0), axis=0)


@triton.jit
def _fill(out, total, size, start, FILL: tl.constexpr, dtype: tl.constexpr):
    entry = start + tl.arange(0, FILL)
    tl.store(out + entry, tl.full([FILL], -1, dtype), mask=(entry >= total) & (entry < size))


@triton.jit(do_not_specialize=("batch", "run", "n_rows", "width"))
def _emit_kernel(
    index, accepted, bonus_token, tokens, seq_len, table, pool_row, notes,
    tokens_out, indptr_out, rows_out, rows_indptr_out, unfinished_out, unfinished_count,
    src_out, dst_out, move_count, free_out, free_count, batch, run, n_rows, width,
    N: tl.constexpr, B: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """Write one request's share of every list; programs past the batch fill and total."""
    request = tl.program_id(0)
    lane = tl.arange(0, B)
    is_lane = lane < batch
    note = notes + lane * N
    emitted = tl.load(note + EMITTED, mask=is_lane, other=0)
    kept = tl.load(note + KEPT, mask=is_lane, other=0)
    goes_on = tl.load(note + GOES_ON, mask=is_lane, other=0)
    moved = tl.load(note + MOVED, mask=is_lane, other=0)
    freed = tl.load(note + FREED, mask=is_lane, other=0)
    continued = kept * goes_on
    if request >= batch:
        start = (request - batch) * FILL
        _fill(tokens_out, tl.sum(emitted, axis=0), batch * run, start, FILL, tl.int64)
        _fill(rows_out, tl.sum(continued, axis=0), batch * run, start, FILL, tl.int64)
        _fill(unfinished_out, tl.sum(goes_on, axis=0), batch, start, FILL, tl.int64)
        _fill(src_out, tl.sum(moved, axis=0), batch * run, start, FILL, tl.int32)
        _fill(dst_out, tl.sum(moved, axis=0), batch * run, start, FILL, tl.int32)
        _fill(free_out, tl.sum(freed, axis=0), n_rows, start, FILL, tl.int32)
        if request == batch:
            tl.store(indptr_out, 0)
            tl.store(indptr_out + 1 + lane, tl.cumsum(emitted, axis=0), mask=is_lane)
            tl.store(rows_indptr_out, 0)
            tl.store(rows_indptr_out + 1 + lane, tl.cumsum(continued, axis=0), mask=is_lane)
            tl.store(unfinished_count, tl.sum(goes_on, axis=0))
            tl.store(move_count, tl.sum(moved, axis=0))
            tl.store(free_count, tl.sum(freed, axis=0))
    else:
        own = notes + request * N
        first = tl.load(own + FIRST).to(tl.int64)
        n_emitted = tl.load(own + EMITTED)
        n_kept = tl.load(own + KEPT)
        step = tl.arange(0, D)
        row = index + request * run
        entry = tl.load(row + step, mask=step < n_kept, other=0)
        n_accepted = tl.where(n_kept > 0, tl.load(accepted + request), 0)
        token = _run_tokens(row, tokens, tl.load(bonus_token + request), first, n_accepted, D)
        tl.store(tokens_out + _before(emitted, lane, request) + step, token, mask=step < n_emitted)
        if tl.load(own + GOES_ON) > 0:
            out = rows_out + _before(continued, lane, request)
            tl.store(out + step, first + entry, mask=step < n_kept)
            tl.store(unfinished_out + _before(goes_on, lane, request), request.to(tl.int64))
        if n_kept > 0:
            slots = table + tl.load(pool_row + request) * width + tl.load(seq_len + request)
            is_moved = _is_moved(entry, step, n_kept)
            place = _before(moved, lane, request) + tl.cumsum(is_moved.to(tl.int32), axis=0) - 1
            source = tl.load(slots + entry, mask=is_moved, other=0)
            tl.store(src_out + place, source, mask=is_moved)
            target = tl.load(slots + step, mask=is_moved, other=0)
            tl.store(dst_out + place, target, mask=is_moved)
            rest = tl.arange(0, Q)
            is_freed = rest < tl.load(own + FREED)
            slot = tl.load(slots + n_kept + rest, mask=is_freed, other=0)
            tl.store(free_out + _before(freed, lane, request) + rest, slot, mask=is_freed)


@takes_call
def update_verify_result(call: VerifyResult) -> dict[str, Tensor]:
    """K7: emitted tokens, kept rows, finished and unfinished requests, KV moves, freed slots."""
    batch, run = call.accept_index.shape
    n_rows, device = call.draft_tokens.shape[0], call.accept_index.device
    n_table, width = call.req_to_token.shape
    outputs = _outputs(batch, run, n_rows, device)
    notes = torch.empty(batch, _NOTES, dtype=torch.int32, device=device)
    runs = contiguous(call.accept_index, call.accept_count, call.bonus_token)
    tokens, lengths, pool_rows = contiguous(call.draft_tokens, call.seq_len, call.req_pool_indices)
    sizes = {"N": _NOTES, "B": MAX_BATCH, "Q": MAX_VERIFY, "D": block(run)}
    if batch:
        _measure_kernel[(batch,)](
            *runs, tokens, call.qo_indptr.contiguous(), lengths,
            *contiguous(call.length_limit, call.stop_tokens), pool_rows, notes,
            outputs["new_seq_len"],
            outputs["finished"].view(torch.uint8), outputs["status"], outputs["detail"],
            run, n_rows, n_table, width, call.stop_tokens.shape[1], num_warps=1, **sizes,
        )  # fmt: skip
    n_fill = max(1, triton.cdiv(max(batch * run, n_rows), FILL_BLOCK))
    lists = [
        outputs[name]
        for name in (
            "out_tokens", "out_indptr", "out_rows", "rows_indptr", "unfinished",
            "unfinished_count", "kv_src", "kv_dst", "move_count", "free", "free_count",
        )
    ]  # fmt: skip
    _emit_kernel[(batch + n_fill,)](
        *runs, tokens, lengths, call.req_to_token.contiguous(), pool_rows, notes, *lists,
        batch, run, n_rows, width, FILL=FILL_BLOCK, **sizes,
    )  # fmt: skip
    return outputs


def _outputs(batch: int, run: int, n_rows: int, device: torch.device) -> dict[str, Tensor]:
    """Room for everything K7 returns."""

    def room(size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    wide, narrow = torch.int64, torch.int32
    return {
        "out_tokens": room(batch * run, wide),
        "out_indptr": room(batch + 1, narrow),
        "out_rows": room(batch * run, wide),
        "rows_indptr": room(batch + 1, narrow),
        "new_seq_len": room(batch, wide),
        "finished": room(batch, torch.bool),
        "unfinished": room(batch, wide),
        "unfinished_count": room(1, narrow),
        "kv_src": room(batch * run, narrow),
        "kv_dst": room(batch * run, narrow),
        "move_count": room(1, narrow),
        "free": room(n_rows, narrow),
        "free_count": room(1, narrow),
        **words(batch, device),
    }
