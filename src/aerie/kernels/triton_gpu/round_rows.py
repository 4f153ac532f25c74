"""Triton R1 and R2: rows of trees and prompts, a block of rows and of columns per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_BATCH
from aerie.kernels.cards.round_rows import PromptRows, VerifyRows
from aerie.kernels.triton_gpu.launch import contiguous, entry_stride

BLOCK = 256
ROUNDS = 8  # bisect 128 requests and the place behind them


@triton.jit
def owner_in(indptr, entry, batch, ROUNDS: tl.constexpr):
    """Request of every entry of a ragged list, by bisection; `batch` past the last. [E]"""
    low = tl.zeros_like(entry)
    high = tl.zeros_like(entry) + batch
    for _ in range(ROUNDS):
        middle = (low + high) // 2
        is_before = (low < high) & (tl.load(indptr + middle + 1, mask=low < high, other=0) <= entry)
        low = tl.where(is_before, middle + 1, low)
        high = tl.where(is_before, high, tl.minimum(high, middle))
    return low


@triton.jit
def write_bounds(
    qo, kv, starts, row_indptr, column_indptr, start_out, batch, n_rows, B: tl.constexpr
):
    """The bounds of all requests and of the inert one behind them, by one program."""
    lane = tl.arange(0, B)
    is_lane = lane <= batch
    bound = tl.load(qo + lane, mask=is_lane, other=0)
    tl.store(row_indptr + lane, tl.where(is_lane, bound, n_rows), mask=lane <= batch + 1)
    # The inert request has one column, whatever the bucket has room for.
    last = tl.load(kv + batch)
    bound = tl.load(kv + lane, mask=is_lane, other=0)
    tl.store(column_indptr + lane, tl.where(is_lane, bound, last + 1), mask=lane <= batch + 1)
    start = tl.load(starts + lane, mask=lane < batch, other=0)
    tl.store(start_out + lane, start.to(tl.int32), mask=is_lane)


@triton.jit(do_not_specialize=("batch", "n_rows", "capacity", "slot_stride"))
def _verify_kernel(
    tokens, positions, qo, kv, slots, seq_len, tokens_out, kv_slots_out, visible_out, row_indptr,
    column_indptr, positions_out, start_out, batch, n_rows, capacity, slot_stride,
    ROUNDS: tl.constexpr, E: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One block of rows and the same block of columns; the first program writes the bounds."""
    program = tl.program_id(0)
    entry = program * E + tl.arange(0, E)
    is_row = entry < n_rows
    owner = owner_in(qo, entry, batch, ROUNDS)
    is_real = is_row & (owner < batch)
    # Padding rows see one column: a row that sees none has no attention to normalise.
    prefix = tl.load(seq_len + owner, mask=is_real, other=1).to(tl.int32)
    first = tl.load(qo + owner, mask=is_real, other=0)
    column = tl.load(kv + owner, mask=is_real, other=0) + prefix + entry - first
    # Behind its own list lies another request's: such a row writes where nothing reads.
    is_listed = is_real & (column < tl.load(kv + owner + 1, mask=is_real, other=0))
    slot = tl.load(slots + column.to(tl.int64) * slot_stride, mask=is_listed, other=0)
    tl.store(kv_slots_out + entry, slot.to(tl.int64), mask=is_row)
    tl.store(visible_out + entry, prefix, mask=is_row)
    token = tl.load(tokens + entry, mask=is_row, other=0)
    tl.store(tokens_out + entry, tl.maximum(token, 0), mask=is_row)

    is_column = entry < capacity
    owner = owner_in(kv, entry, batch, ROUNDS)
    is_used = is_column & (owner < batch)
    prefix = tl.load(seq_len + owner, mask=is_used, other=0).to(tl.int32)
    index = entry - tl.load(kv + owner, mask=is_used, other=0)
    node = index - prefix
    row = tl.load(qo + owner, mask=is_used, other=0) + node
    end = tl.load(qo + owner + 1, mask=is_used, other=0)
    is_node = is_used & (node >= 0) & (row < end)
    stands = tl.load(positions + row, mask=is_node, other=0).to(tl.int32)
    stands = tl.where(is_node, stands, index)
    tl.store(positions_out + entry, tl.where(is_used, stands, 0), mask=is_column)
    # No program reads behind the last list, so there is no race.
    tl.store(slots + entry.to(tl.int64) * slot_stride, 0, mask=is_column & (owner >= batch))
    if program == 0:
        write_bounds(qo, kv, seq_len, row_indptr, column_indptr, start_out, batch, n_rows, B)


@takes_call
def place_verify_rows(call: VerifyRows) -> dict[str, Tensor]:
    """R1: the rows of chosen trees in the buffers of a bucket."""
    batch, n_rows = call.seq_len.shape[0], call.draft_tokens.shape[0]
    capacity = call.kv_indices.shape[0]
    outputs = {
        "tokens": torch.empty_like(call.draft_tokens),
        **_row_outputs(n_rows, batch, capacity, call.draft_tokens.device),
    }
    _verify_kernel[(triton.cdiv(max(n_rows, capacity), BLOCK),)](
        *contiguous(call.draft_tokens, call.positions, call.qo_indptr, call.kv_indptr),
        call.kv_indices, call.seq_len.contiguous(), *outputs.values(),
        batch, n_rows, capacity, entry_stride(call.kv_indices),
        ROUNDS=ROUNDS, E=BLOCK, B=2 * MAX_BATCH,
    )  # fmt: skip
    return outputs


def _row_outputs(n_rows: int, batch: int, capacity: int, device: torch.device) -> dict[str, Tensor]:
    """What R1 and R2 return beside tokens or positions, in the order of their kernels."""

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    return {
        "kv_slots": torch.empty(n_rows, dtype=torch.int64, device=device),
        "visible_prefix": integers(n_rows),
        "row_indptr": integers(batch + 2),
        "column_indptr": integers(batch + 2),
        "column_positions": integers(capacity),
        "tree_start": integers(batch + 1),
    }


@triton.jit(do_not_specialize=("batch", "n_rows", "capacity", "slot_stride"))
def _prompt_kernel(
    qo, start, kv, slots, stands_out, kv_slots_out, visible_out, row_indptr, column_indptr,
    positions_out, start_out, batch, n_rows, capacity, slot_stride,
    ROUNDS: tl.constexpr, E: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One block of rows and the same block of columns; the first program writes the bounds."""
    program = tl.program_id(0)
    entry = program * E + tl.arange(0, E)
    is_row = entry < n_rows
    owner = owner_in(qo, entry, batch, ROUNDS)
    is_real = is_row & (owner < batch)
    own = entry - tl.load(qo + owner, mask=is_real, other=0)
    position = tl.load(start + owner, mask=is_real, other=0) + own
    position = tl.where(is_real, position, 0)
    column = tl.load(kv + owner, mask=is_real, other=0) + position
    # Behind its own list lies another request's: such a row writes where nothing reads.
    is_listed = is_real & (column < tl.load(kv + owner + 1, mask=is_real, other=0))
    slot = tl.load(slots + column.to(tl.int64) * slot_stride, mask=is_listed, other=0)
    tl.store(stands_out + entry, position, mask=is_row)
    tl.store(kv_slots_out + entry, slot.to(tl.int64), mask=is_row)
    tl.store(visible_out + entry, (position + 1).to(tl.int32), mask=is_row)

    is_column = entry < capacity
    owner = owner_in(kv, entry, batch, ROUNDS)
    is_used = is_column & (owner < batch)
    index = entry - tl.load(kv + owner, mask=is_used, other=0)
    tl.store(positions_out + entry, tl.where(is_used, index, 0), mask=is_column)
    tl.store(slots + entry.to(tl.int64) * slot_stride, 0, mask=is_column & (owner >= batch))
    if program == 0:
        write_bounds(qo, kv, start, row_indptr, column_indptr, start_out, batch, n_rows, B)


@takes_call
def place_prompt_rows(call: PromptRows) -> dict[str, Tensor]:
    """R2: the rows of prompt chunks in the buffers of a bucket."""
    capacity, batch, device = call.kv_indices.shape[0], call.start.shape[0], call.start.device
    outputs = {
        "positions": torch.empty(call.row_capacity, dtype=torch.int64, device=device),
        **_row_outputs(call.row_capacity, batch, capacity, device),
    }
    _prompt_kernel[(triton.cdiv(max(call.row_capacity, capacity), BLOCK),)](
        *contiguous(call.qo_indptr, call.start, call.kv_indptr), call.kv_indices,
        *outputs.values(), batch, call.row_capacity, capacity, entry_stride(call.kv_indices),
        ROUNDS=ROUNDS, E=BLOCK, B=2 * MAX_BATCH,
    )  # fmt: skip
    return outputs
