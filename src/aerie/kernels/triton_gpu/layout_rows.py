"""Triton K10c: collect and check the chosen nodes, then write them as flat rows with links."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_BATCH, MAX_VERIFY
from aerie.kernels.cards.layout import NodeData
from aerie.kernels.triton_gpu.device import (
    BROKEN_TREE,
    DUPLICATE_SIBLING,
    FAR,
    NEGATIVE_LENGTH,
    OUT_OF_RANGE,
    ROW_CAPACITY,
    SLOT_CAPACITY,
    refuse,
)
from aerie.kernels.triton_gpu.launch import as_bytes, contiguous, tree_block, words

NODE_BLOCK = 512
# Rows compared with each other at a time; more are walked in blocks.
TWIN_BLOCK = 64
FILL_BLOCK = 1024


@triton.jit
def _first_twin(tokens, prev, nodes, count, Q: tl.constexpr):
    """The first row that shares parent and token with an earlier one, or FAR."""
    twin = tl.full([], FAR, tl.int64)
    for low in range(0, count, Q):
        row = low + tl.arange(0, Q)
        node = tl.load(nodes + row, mask=row < count, other=0)
        parent = tl.load(prev + node, mask=row < count, other=-2).to(tl.int32)
        token = tl.load(tokens + node, mask=row < count, other=0)
        for start in range(0, low + 1, Q):
            earlier = start + tl.arange(0, Q)
            other = tl.load(nodes + earlier, mask=earlier < count, other=0)
            other_parent = tl.load(prev + other, mask=earlier < count, other=-3).to(tl.int32)
            other_token = tl.load(tokens + other, mask=earlier < count, other=0)
            is_twin = (parent[:, None] == other_parent[None, :]) & (
                token[:, None] == other_token[None, :]
            )
            is_twin &= earlier[None, :] < row[:, None]
            has_twin = tl.max(is_twin.to(tl.int32), axis=1) > 0
            twin = tl.minimum(twin, tl.min(tl.where(has_twin, row.to(tl.int64), FAR), axis=0))
    return twin


@triton.jit(do_not_specialize=("n_nodes",))
def _collect_kernel(
    tokens, prev, node_count, selected, seq_len, nodes, count_out, status_out, detail_out,
    n_nodes, most, N: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """The chosen nodes of one request in ascending order, their number and what is wrong."""
    request = tl.program_id(0).to(tl.int64)
    row = request * n_nodes
    used = tl.load(node_count + request)
    length = tl.load(seq_len + request)
    count = tl.zeros([], tl.int32)
    worst = tl.full([], FAR, tl.int64)
    for start in range(0, n_nodes, N):
        node = (start + tl.arange(0, N)).to(tl.int64)
        is_chosen = tl.load(selected + row + node, mask=node < n_nodes, other=0) != 0
        parent = tl.load(prev + row + node, mask=is_chosen, other=-1)
        has_parent = is_chosen & (parent >= 0) & (parent < node)
        is_linked = tl.load(selected + row + parent, mask=has_parent, other=0) != 0
        is_linked = tl.where(node == 0, parent == -1, is_linked)
        is_bad = is_chosen & ((is_linked == 0) | (node >= used))
        is_bad |= (node == 0) & (is_chosen == 0)
        worst = tl.minimum(worst, tl.min(tl.where(is_bad, node, FAR), axis=0))
        place = count + tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
        tl.store(nodes + row + place, node.to(tl.int32), mask=is_chosen)
        count += tl.sum(is_chosen.to(tl.int32), axis=0)
    status = tl.zeros([], tl.int32)
    detail = tl.zeros([], tl.int64)
    status, detail = refuse(status, detail, OUT_OF_RANGE, (used < 1) | (used > n_nodes), used)
    status, detail = refuse(status, detail, NEGATIVE_LENGTH, length < 0, length)
    status, detail = refuse(status, detail, BROKEN_TREE, worst < FAR, worst)
    # The list was written by all threads and is read by others.
    tl.debug_barrier()
    if status == 0:
        twin = _first_twin(tokens + row, prev + row, nodes + row, count, Q)
        if twin < FAR:
            node = tl.load(nodes + row + twin)
            status, detail = refuse(
                status, detail, DUPLICATE_SIBLING, True, tl.load(tokens + row + node)
            )
        status, detail = refuse(status, detail, ROW_CAPACITY, count > most, count.to(tl.int64))
    tl.store(count_out + request, count)
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)


@triton.jit
def _ancestors(parent, Q: tl.constexpr):
    """128 ancestor-or-self bits of every row as two words, walked up all rows at once. [Q]"""
    row = tl.arange(0, Q).to(tl.int64)
    one = tl.full([Q], 1, tl.int64)
    low = tl.where(row < 64, one << (row & 63), 0)
    high = tl.where(row >= 64, one << (row & 63), 0)
    at = parent
    while tl.max(at, axis=0) >= 0:
        bit = one << (at.to(tl.int64) & 63)
        low |= tl.where((at >= 0) & (at < 64), bit, 0)
        high |= tl.where(at >= 64, bit, 0)
        at = tl.where(at >= 0, tl.gather(parent, tl.maximum(at, 0), 0), -1)
    return low, high


@triton.jit(do_not_specialize=("batch", "n_nodes", "capacity"))
def _rows_kernel(
    tokens, depths, prev, seq_len, nodes, count_in, status_in, detail_in,
    indptr_out, tokens_out, positions_out, parent_out, child_out, sibling_out, bits_out,
    status_out, detail_out, batch, n_nodes, capacity,
    B: tl.constexpr, Q: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """Rows of one request; programs past the batch fill what no request uses."""
    lane = tl.arange(0, B)
    is_lane = lane < batch
    is_clean = tl.load(status_in + lane, mask=is_lane, other=1) == 0
    counts = tl.where(is_clean, tl.load(count_in + lane, mask=is_lane, other=0), 0)
    asked = tl.cumsum(counts, axis=0)
    kept = tl.where(asked <= capacity, counts, 0)
    request = tl.program_id(0)
    first = tl.sum(tl.where(lane < request, kept, 0), axis=0)
    if request >= batch:
        total = tl.sum(kept, axis=0)
        entry = (request - batch) * FILL + tl.arange(0, FILL)
        is_spare = (entry >= total) & (entry < capacity)
        none = tl.full([FILL], -1, tl.int64)
        tl.store(tokens_out + entry, none, mask=is_spare)
        tl.store(positions_out + entry, none + 1, mask=is_spare)
        tl.store(parent_out + entry, none, mask=is_spare)
        tl.store(child_out + entry, none, mask=is_spare)
        tl.store(sibling_out + entry, none, mask=is_spare)
        for word in tl.static_range(4):
            tl.store(bits_out + entry * 4 + word, tl.zeros([FILL], tl.int32), mask=is_spare)
        if request == batch:
            tl.store(indptr_out, 0)
            tl.store(indptr_out + 1 + lane, tl.cumsum(kept, axis=0), mask=is_lane)
    else:
        status = tl.load(status_in + request)
        own_asked = tl.sum(tl.where(lane == request, asked, 0), axis=0)
        detail = tl.load(detail_in + request)
        status, detail = refuse(
            status, detail, SLOT_CAPACITY, own_asked > capacity, own_asked.to(tl.int64)
        )
        tl.store(status_out + request, status)
        tl.store(detail_out + request, detail)
        count = tl.sum(tl.where(lane == request, kept, 0), axis=0)
        row = tl.arange(0, Q)
        is_row = row < count
        store_row = request.to(tl.int64) * n_nodes
        node = tl.load(nodes + store_row + row, mask=is_row, other=-1)
        parent_node = tl.load(prev + store_row + node, mask=is_row & (row > 0), other=-1)
        is_parent = node[None, :] == parent_node.to(tl.int32)[:, None]
        is_parent &= (is_row & (row > 0))[:, None] & is_row[None, :]
        parent = tl.max(tl.where(is_parent, row[None, :], -1), axis=1)
        child = tl.min(tl.where(is_parent, row[:, None], Q), axis=0)
        is_later = (parent[:, None] == parent[None, :]) & (row[None, :] > row[:, None])
        is_later &= (parent >= 0)[:, None]
        sibling = tl.min(tl.where(is_later, row[None, :], Q), axis=1)
        low, high = _ancestors(parent, Q)
        out = first + row
        token = tl.load(tokens + store_row + node, mask=is_row, other=-1)
        depth = tl.load(depths + store_row + node, mask=is_row, other=0)
        tl.store(tokens_out + out, token, mask=is_row)
        tl.store(positions_out + out, tl.load(seq_len + request) + depth, mask=is_row)
        tl.store(parent_out + out, parent.to(tl.int64), mask=is_row)
        tl.store(child_out + out, tl.where(child < Q, child, -1).to(tl.int64), mask=is_row)
        tl.store(sibling_out + out, tl.where(sibling < Q, sibling, -1).to(tl.int64), mask=is_row)
        tl.store(bits_out + out * 4, low.to(tl.int32), mask=is_row)
        tl.store(bits_out + out * 4 + 1, (low >> 32).to(tl.int32), mask=is_row)
        tl.store(bits_out + out * 4 + 2, high.to(tl.int32), mask=is_row)
        tl.store(bits_out + out * 4 + 3, (high >> 32).to(tl.int32), mask=is_row)


@takes_call
def update_node_data(call: NodeData) -> dict[str, Tensor]:
    """K10c: the chosen nodes as flat rows with links and ancestor bits."""
    batch, n_nodes = call.cumu_tokens.shape
    device = call.cumu_tokens.device
    outputs = {"qo_indptr": torch.empty(batch + 1, dtype=torch.int32, device=device)}
    for name in ("draft_tokens", "positions", "parent_row", "first_child_row", "next_sibling_row"):
        outputs[name] = torch.empty(call.row_capacity, dtype=torch.int64, device=device)
    bits = torch.empty(call.row_capacity, 4, dtype=torch.int32, device=device)
    found = words(batch, device)
    tokens, prev, lengths = contiguous(call.cumu_tokens, call.prev_indexs, call.seq_len)
    nodes = torch.empty(batch, n_nodes, dtype=torch.int32, device=device)
    count = torch.empty(batch, dtype=torch.int32, device=device)
    first_look = words(batch, device)
    if batch:
        _collect_kernel[(batch,)](
            tokens, prev, call.node_count.contiguous(), as_bytes(call.selected), lengths, nodes,
            count, *first_look.values(), n_nodes, MAX_VERIFY, N=NODE_BLOCK, Q=TWIN_BLOCK,
        )  # fmt: skip
    n_fill = max(1, triton.cdiv(call.row_capacity, FILL_BLOCK))
    _rows_kernel[(batch + n_fill,)](
        tokens, call.cumu_deltas.contiguous(), prev, lengths, nodes, count, *first_look.values(),
        *outputs.values(), bits, *found.values(), batch, n_nodes, call.row_capacity,
        B=MAX_BATCH, Q=tree_block(call.row_capacity), FILL=FILL_BLOCK,
        num_warps=8 if call.row_capacity > 64 else 4,
    )  # fmt: skip
    return {**outputs, "ancestor_bits": bits.view(torch.uint32), **found}
