"""Triton K8 (one list per request) and K4: KV slot lists, and visibility packed to bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_BATCH, MAX_VERIFY
from aerie.kernels.cards.layout import TreeMask
from aerie.kernels.cards.memory import KvIndices
from aerie.kernels.triton_gpu.device import (
    BROKEN_LAYOUT,
    KV_CAPACITY,
    MASK_CAPACITY,
    NEGATIVE_LENGTH,
    OUT_OF_RANGE,
    ROW_CAPACITY,
    TABLE_ROW,
    end_of,
    refuse,
)
from aerie.kernels.triton_gpu.launch import contiguous, words

ENTRY_BLOCK = 1024
# Bisecting 128 requests and the place behind them.
ROUNDS = 8
_SIZES = ("batch", "n_rows", "n_table", "width", "kv_capacity", "mask_capacity")


@triton.jit
def _check_spans(
    status, detail, qo_indptr, lane, is_lane, n_rows, B: tl.constexpr, Q: tl.constexpr
):
    """Row count of every request, with the refusals of its layout. [B]"""
    first = tl.load(qo_indptr + lane, mask=is_lane, other=0)
    end = tl.load(qo_indptr + lane + 1, mask=is_lane, other=0)
    is_earlier = lane[None, :] <= lane[:, None]
    highest = tl.max(tl.where(is_earlier, first[None, :], -1), axis=1)
    is_broken = (first < 0) | (end < first) | (end > n_rows) | (first < highest)
    status, detail = refuse(status, detail, BROKEN_LAYOUT, is_broken & is_lane, end.to(tl.int64))
    count = end.to(tl.int64) - first
    status, detail = refuse(status, detail, ROW_CAPACITY, count > Q, count)
    return tl.where(status == 0, count, 0), status, detail


@triton.jit
def _check_table(status, detail, pool_row, length, count, n_table, width, is_lane):
    """Refuse requests whose table row, or positions [0, length + count), do not exist. [B]"""
    outside = ((pool_row < 0) | (pool_row >= n_table)) & is_lane
    status, detail = refuse(status, detail, TABLE_ROW, outside, pool_row)
    status, detail = refuse(status, detail, NEGATIVE_LENGTH, length < 0, length)
    # Not length + count > width: that sum may pass int64.
    return refuse(status, detail, OUT_OF_RANGE, length > width - count, end_of(length, count))


@triton.jit(do_not_specialize=_SIZES)
def _measure_kernel(
    pool_in, seq_len, qo_indptr, kv_indptr, mask_indptr, status_out, detail_out,
    batch, n_rows, n_table, width, kv_capacity, mask_capacity,
    MASK: tl.constexpr, B: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """One program: check every request, and where its lists begin."""
    lane = tl.arange(0, B)
    is_lane = lane < batch
    status = tl.zeros([B], tl.int32)
    detail = tl.zeros([B], tl.int64)
    count = tl.zeros([B], tl.int64)
    if MASK:
        count, status, detail = _check_spans(status, detail, qo_indptr, lane, is_lane, n_rows, B, Q)
    pool_row = tl.load(pool_in + lane, mask=is_lane, other=0)
    length = tl.load(seq_len + lane, mask=is_lane, other=0)
    status, detail = _check_table(status, detail, pool_row, length, count, n_table, width, is_lane)
    columns = tl.where((status == 0) & is_lane, length + count, 0)
    n_bytes = (count * columns + 7) >> 3
    asked = tl.cumsum(columns, axis=0)
    asked_bytes = tl.cumsum(n_bytes, axis=0)
    is_clean = (status == 0) & is_lane
    status, detail = refuse(status, detail, KV_CAPACITY, is_clean & (asked > kv_capacity), asked)
    if MASK:
        is_over = is_clean & (asked_bytes > mask_capacity)
        status, detail = refuse(status, detail, MASK_CAPACITY, is_over, asked_bytes)
        ends = tl.cumsum(tl.where(status == 0, n_bytes, 0), axis=0)
        tl.store(mask_indptr, 0)
        tl.store(mask_indptr + 1 + lane, ends.to(tl.int32), mask=is_lane)
    ends = tl.cumsum(tl.where(status == 0, columns, 0), axis=0)
    tl.store(kv_indptr, 0)
    tl.store(kv_indptr + 1 + lane, ends.to(tl.int32), mask=is_lane)
    tl.store(status_out + lane, status, mask=is_lane)
    tl.store(detail_out + lane, detail, mask=is_lane)


@triton.jit
def _owner_of(indptr, entry, batch, ROUNDS: tl.constexpr):
    """Request of every entry of a ragged list, by bisection; `batch` past the last. [E]"""
    low = tl.zeros_like(entry)
    high = tl.zeros_like(entry) + batch
    for _ in range(ROUNDS):
        middle = (low + high) // 2
        is_before = (low < high) & (tl.load(indptr + middle + 1, mask=low < high, other=0) <= entry)
        low = tl.where(is_before, middle + 1, low)
        high = tl.where(is_before, high, tl.minimum(high, middle))
    return low


@triton.jit(do_not_specialize=("batch", "width", "kv_capacity", "mask_capacity", "n_kv"))
def _write_kernel(
    table, pool_row, qo_indptr, bits, kv_indptr, kv_out, mask_indptr, mask_out,
    batch, width, kv_capacity, mask_capacity, n_kv,
    MASK: tl.constexpr, ROUNDS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """One block of the slot lists, or of the packed bits; -1 and 0 past the last request."""
    program = tl.program_id(0)
    if program < n_kv:
        entry = program * E + tl.arange(0, E)
        owner = _owner_of(kv_indptr, entry, batch, ROUNDS)
        is_used = owner < batch
        step = entry - tl.load(kv_indptr + owner, mask=is_used, other=0)
        row = tl.load(pool_row + owner, mask=is_used, other=0)
        slot = tl.load(table + row * width + step, mask=is_used, other=-1)
        tl.store(kv_out + entry, slot, mask=entry < kv_capacity)
    if MASK:  # noqa: SIM102, known when the kernel is compiled
        if program >= n_kv:
            byte = (program - n_kv) * E + tl.arange(0, E)
            owner = _owner_of(mask_indptr, byte, batch, ROUNDS)
            is_byte = owner < batch
            first = tl.load(qo_indptr + owner, mask=is_byte, other=0)
            n_rows = tl.load(qo_indptr + owner + 1, mask=is_byte, other=0) - first
            begin = tl.load(kv_indptr + owner, mask=is_byte, other=0)
            columns = tl.load(kv_indptr + owner + 1, mask=is_byte, other=1) - begin
            bit = (byte - tl.load(mask_indptr + owner, mask=is_byte, other=0)).to(tl.int64) * 8
            packed = tl.zeros([E], tl.int32)
            for place in tl.static_range(8):
                row = ((bit + place) // columns).to(tl.int32)
                tree = ((bit + place) % columns).to(tl.int32) - (columns - n_rows)
                is_bit = is_byte & (row < n_rows)
                is_tree = is_bit & (tree >= 0)
                word = tl.load(bits + (first + row) * 4 + tree // 32, mask=is_tree, other=0)
                is_seen = tl.where(tree >= 0, (word >> (tree & 31)) & 1, 1)
                packed |= tl.where(is_bit, is_seen, 0) << place
            tl.store(mask_out + byte, packed.to(tl.uint8), mask=byte < mask_capacity)


@takes_call
def fused_tree_mask_operator(call: TreeMask) -> dict[str, Tensor]:
    """K4: KV slot lists and visibility packed to bits, segment by segment."""
    batch, device = call.seq_len.shape[0], call.seq_len.device
    indptrs = [torch.empty(batch + 1, dtype=torch.int32, device=device) for _ in range(2)]
    outputs = {
        "kv_indptr": indptrs[0],
        "kv_indices": torch.empty(call.kv_capacity, dtype=torch.int32, device=device),
        "mask_indptr": indptrs[1],
        "packed_mask": torch.empty(call.mask_capacity, dtype=torch.uint8, device=device),
        **words(batch, device),
    }
    table, pool_rows, rows = contiguous(call.req_to_token, call.req_pool_indices, call.qo_indptr)
    bits = call.ancestor_bits.contiguous().view(torch.int32)
    kv_indptr, kv_indices, mask_indptr, packed, status, detail = outputs.values()
    _measure_kernel[(1,)](
        pool_rows, call.seq_len.contiguous(), rows, kv_indptr, mask_indptr, status, detail,
        batch, bits.shape[0], *table.shape, call.kv_capacity, call.mask_capacity,
        MASK=True, B=MAX_BATCH, Q=MAX_VERIFY,
    )  # fmt: skip
    n_kv = triton.cdiv(call.kv_capacity, ENTRY_BLOCK)
    n_programs = n_kv + triton.cdiv(call.mask_capacity, ENTRY_BLOCK)
    if n_programs:
        _write_kernel[(n_programs,)](
            table, pool_rows, rows, bits, kv_indptr, kv_indices, mask_indptr, packed,
            batch, table.shape[1], call.kv_capacity, call.mask_capacity, n_kv,
            MASK=True, ROUNDS=ROUNDS, E=ENTRY_BLOCK,
        )  # fmt: skip
    return outputs


@takes_call
def compute_kv_indices(call: KvIndices) -> dict[str, Tensor]:
    """K8: the first `seq_len` slots of each request."""
    batch, device = call.seq_len.shape[0], call.seq_len.device
    indptr = torch.empty(batch + 1, dtype=torch.int32, device=device)
    indices = torch.empty(call.kv_capacity, dtype=torch.int32, device=device)
    found = words(batch, device)
    lengths, pool_rows, table = contiguous(call.seq_len, call.req_pool_indices, call.req_to_token)
    _measure_kernel[(1,)](
        pool_rows, lengths, indptr, indptr, indptr, *found.values(),
        batch, 0, *table.shape, call.kv_capacity, 0, MASK=False, B=MAX_BATCH, Q=MAX_VERIFY,
        num_warps=1,  # sums over 128 lanes: warps would wait for one another
    )  # fmt: skip
    n_kv = triton.cdiv(call.kv_capacity, ENTRY_BLOCK)
    if n_kv:
        _write_kernel[(n_kv,)](
            table, pool_rows, indptr, indptr, indptr, indices, indptr, indices,
            batch, table.shape[1], call.kv_capacity, 0, n_kv,
            MASK=False, ROUNDS=ROUNDS, E=ENTRY_BLOCK,
        )  # fmt: skip
    return {"kv_indptr": indptr, "kv_indices": indices, **found}
