"""Triton rows of a draft: R3 the accepted runs, R4 the levels it is fed, R5 what a node sees."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MASK_WORDS
from aerie.kernels.cards.round_draft import DraftPaths
from aerie.kernels.cards.round_rows import DraftLevels, DraftRows
from aerie.kernels.triton_gpu.launch import block, contiguous, entry_stride
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn
from aerie.kernels.triton_gpu.round_rows import BLOCK, ROUNDS, owner_in

LEVEL_ROUNDS = 11  # bisect 1024 fed nodes


@triton.jit(do_not_specialize=("batch", "run", "width"))
def _run_kernel(
    seq_len, count, table, table_row, positions_out, kv_slots_out, visible_out, last_out,
    start_out, batch, run, width, E: tl.constexpr,
):  # fmt: skip
    """One block of the rows that a draft takes in."""
    entry = tl.program_id(0) * E + tl.arange(0, E)
    request = entry // run
    is_row = request < batch
    own = entry - request * run
    length = tl.load(seq_len + request, mask=is_row, other=0)
    kept = tl.load(count + request, mask=is_row, other=0)
    row = tl.load(table_row + request, mask=is_row, other=0)
    # A row without a token stands where the last one with a token does: attention walks the
    # columns that any row of a request may see, and one at position 0 would have it walk them all.
    position = tl.maximum(length - kept + tl.minimum(own, kept - 1), 0)
    is_real = is_row & (own < kept)
    slot = tl.load(table + row * width + tl.minimum(position, width - 1), mask=is_real, other=0)
    tl.store(positions_out + entry, position, mask=is_row)
    tl.store(kv_slots_out + entry, slot.to(tl.int64), mask=is_row)
    tl.store(visible_out + entry, (position + 1).to(tl.int32), mask=is_row)
    last = request.to(tl.int64) * run + tl.maximum(kept - 1, 0)
    is_first = is_row & (own == 0)
    tl.store(last_out + request, last, mask=is_first)
    tl.store(start_out + request, length.to(tl.int32), mask=is_first)


@takes_call
def place_draft_rows(call: DraftRows) -> dict[str, Tensor]:
    """R3: the rows a draft takes in."""
    batch, device = call.seq_len.shape[0], call.seq_len.device
    outputs = {
        "positions": torch.empty(batch * call.run, dtype=torch.int64, device=device),
        "kv_slots": torch.empty(batch * call.run, dtype=torch.int64, device=device),
        "visible_prefix": torch.empty(batch * call.run, dtype=torch.int32, device=device),
        "last": torch.empty(batch, dtype=torch.int64, device=device),
        "tree_start": torch.empty(batch, dtype=torch.int32, device=device),
    }
    if batch:
        _run_kernel[(triton.cdiv(batch * call.run, BLOCK),)](
            *contiguous(call.seq_len, call.count, call.req_to_token, call.req_pool_indices),
            *outputs.values(), batch, call.run, call.req_to_token.shape[1], E=BLOCK,
        )  # fmt: skip
    return outputs


@triton.jit
def count_below(ascending, value, n_values, ROUNDS: tl.constexpr):
    """How many of the ascending values are less than each of `value[E]`, by bisection. [E]"""
    low = tl.zeros_like(value)
    high = tl.zeros_like(value) + n_values
    for _ in range(ROUNDS):
        middle = (low + high) // 2
        is_open = low < high
        is_less = is_open & (tl.load(ascending + middle, mask=is_open, other=0) < value)
        low = tl.where(is_less, middle + 1, low)
        high = tl.where(is_less, high, tl.minimum(high, middle))
    return low


@triton.jit(do_not_specialize=("batch", "n_fed", "capacity", "width", "slot_stride"))
def _level_kernel(
    seq_len, table, table_row, levels, kv, slots, fed_positions_out, fed_slots_out,
    fed_visible_out, columns_out, batch, n_fed, capacity, width, slot_stride,
    ROUNDS: tl.constexpr, LEVEL_ROUNDS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """One block of fed nodes and the same block of columns."""
    entry = tl.program_id(0) * E + tl.arange(0, E)
    if n_fed > 0:
        request = entry // n_fed
        is_fed = request < batch
        node = entry - request * n_fed
        level = tl.load(levels + node, mask=is_fed, other=0)
        # Nodes of a level lie together, request after request: a level is one slice of rows.
        before = count_below(levels, level, n_fed, LEVEL_ROUNDS)
        wide = count_below(levels, level + 1, n_fed, LEVEL_ROUNDS) - before
        out = batch * before + request * wide + node - before
        length = tl.load(seq_len + request, mask=is_fed, other=0)
        row = tl.load(table_row + request, mask=is_fed, other=0)
        place = tl.minimum(length + node, width - 1)
        slot = tl.load(table + row * width + place, mask=is_fed, other=0)
        tl.store(fed_positions_out + out, length + level, mask=is_fed)
        tl.store(fed_slots_out + out, slot.to(tl.int64), mask=is_fed)
        tl.store(fed_visible_out + out, length.to(tl.int32), mask=is_fed)

    is_column = entry < capacity
    owner = owner_in(kv, entry, batch, ROUNDS)
    is_used = is_column & (owner < batch)
    index = entry - tl.load(kv + owner, mask=is_used, other=0)
    length = tl.load(seq_len + owner, mask=is_used, other=0).to(tl.int32)
    node = index - length
    is_node = is_used & (node >= 0) & (node < n_fed)
    level = tl.load(levels + node, mask=is_node, other=0).to(tl.int32)
    stands = tl.where(is_node, length + level, index)
    tl.store(columns_out + entry, tl.where(is_used, stands, 0), mask=is_column)
    tl.store(slots + entry.to(tl.int64) * slot_stride, 0, mask=is_column & (owner >= batch))


@takes_call
def place_draft_levels(call: DraftLevels) -> dict[str, Tensor]:
    """R4: the nodes a draft is fed, and the columns of its lists."""
    batch, n_fed, device = call.seq_len.shape[0], call.node_level.shape[0], call.seq_len.device
    capacity = call.kv_indices.shape[0]
    outputs = {
        "fed_positions": torch.empty(batch * n_fed, dtype=torch.int64, device=device),
        "fed_slots": torch.empty(batch * n_fed, dtype=torch.int64, device=device),
        "fed_visible": torch.empty(batch * n_fed, dtype=torch.int32, device=device),
        "column_positions": torch.empty(capacity, dtype=torch.int32, device=device),
    }
    _level_kernel[(triton.cdiv(max(capacity, batch * n_fed), BLOCK),)](
        *contiguous(call.seq_len, call.req_to_token, call.req_pool_indices),
        *contiguous(call.node_level, call.kv_indptr), call.kv_indices, *outputs.values(),
        batch, n_fed, capacity, call.req_to_token.shape[1], entry_stride(call.kv_indices),
        ROUNDS=ROUNDS, LEVEL_ROUNDS=LEVEL_ROUNDS, E=BLOCK,
    )  # fmt: skip
    return outputs


@triton.jit(do_not_specialize=("n", "width", "first_id", "top_k", "fed"))
def _bits_kernel(
    bits, ids, bits_out, n, width, first_id, top_k, fed, W: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
    """The nodes of one request: their parents' bits and their own."""
    take_turn(OVERLAP)
    request = tl.program_id(0)
    node = tl.arange(0, W)
    word = tl.arange(0, 4)
    is_node = node < n
    own_id = tl.load(ids + request * n + node, mask=is_node, other=0)
    # A refused request has ids of no nodes: any slot will do, as long as it is its own.
    slot = tl.minimum(tl.maximum((own_id - first_id) // top_k, 0), width - 1)
    parent = bits + (request * width + slot)[:, None] * 4 + word[None, :]
    seen = tl.load(parent, mask=is_node[:, None], other=0)
    column = fed + node
    bit = tl.where((column // 32)[:, None] == word[None, :], (1 << (column % 32))[:, None], 0)
    out = bits_out + (request * n + node)[:, None] * 4 + word[None, :]
    tl.store(out, seen | bit, mask=is_node[:, None])


@takes_call
def mark_draft_paths(call: DraftPaths) -> dict[str, Tensor]:
    """R5: the parent's bits and the node's own."""
    batch, n = call.node_ids.shape
    made = torch.empty((batch, n, MASK_WORDS), dtype=torch.int32, device=call.node_ids.device)
    if batch:
        _bits_kernel[(batch,)](
            *contiguous(call.frontier_bits, call.node_ids), made, n, call.frontier_bits.shape[1],
            call.first_id, call.top_k, call.fed_count, W=block(n, 16), **overlapped(made),
        )  # fmt: skip
    return {"node_bits": made}
