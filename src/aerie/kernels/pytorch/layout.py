"""PyTorch verify layout: K10c rows and links, K4 packed masks, K9 offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import INT32_MAX, MAX_VERIFY
from aerie.kernels.cards.layout import LARGEST_NAMED, NodeData, TreeMask, VerifyOffsets
from aerie.kernels.pytorch.ragged import (
    SlotLists,
    Spans,
    check_table_span,
    offsets,
    repeated_sibling,
    request_spans,
)
from aerie.kernels.pytorch.refusals import Refusals, first_true
from aerie.kernels.status import Status


@takes_call
def update_node_data(call: NodeData) -> dict[str, Tensor]:
    """K10c: the chosen nodes as flat rows with links and ancestor bits."""
    batch, n_nodes = call.cumu_tokens.shape
    device = call.cumu_tokens.device
    n_slots = min(n_nodes, MAX_VERIFY)
    ids = torch.arange(n_nodes, device=device)
    refusals = Refusals(batch, device)
    is_outside = (call.node_count < 1) | (call.node_count > n_nodes)
    refusals.add(Status.OUT_OF_RANGE, is_outside, call.node_count)
    refusals.add(Status.NEGATIVE_LENGTH, call.seq_len < 0, call.seq_len)
    _check_tree(refusals, call.prev_indexs, call.selected, ids, call.node_count)
    repeated = repeated_sibling(call.prev_indexs, call.cumu_tokens, call.selected)
    refusals.add(Status.DUPLICATE_SIBLING, *repeated)
    row_of = call.selected.cumsum(dim=1).sub_(1)  # [B, N] row of each selected node
    count = row_of[:, -1] + 1
    refusals.add(Status.ROW_CAPACITY, count > MAX_VERIFY, count)
    asked = count.masked_fill(refusals.refused, 0).cumsum(0)
    refusals.add(Status.SLOT_CAPACITY, asked > call.row_capacity, asked)
    count = count.masked_fill(refusals.refused, 0)

    # [B, Q] the node of each row; what is not selected goes to a column that is cut off.
    column = torch.where(call.selected, row_of, n_slots).clamp_max_(n_slots)
    nodes = torch.zeros(batch, n_slots + 1, dtype=torch.int64, device=device)
    nodes = nodes.scatter_(1, column, ids.expand(batch, n_nodes))[:, :n_slots]
    rows = ids[:n_slots]
    has_parent = (rows > 0) & (rows < count[:, None])
    parent_node = call.prev_indexs.gather(1, nodes).clamp_(0, n_nodes - 1)
    # n_slots stands for no parent until the end.
    parent = torch.where(has_parent, row_of.gather(1, parent_node), n_slots)
    parent = parent.clamp_(0, n_slots)
    first_child, next_sibling = _child_links(parent, rows)
    low, high = _ancestor_words(parent, rows)
    positions = call.cumu_deltas.gather(1, nodes).add_(call.seq_len[:, None])
    parent = parent.masked_fill_(parent == n_slots, -1)
    tokens = call.cumu_tokens.gather(1, nodes)

    indptr = offsets(count)
    flat = torch.arange(call.row_capacity, device=device)
    fields = torch.stack([tokens, parent, first_child, next_sibling, positions, low, high])
    beyond = flat >= indptr[-1]
    flat_rows = _flatten(fields, indptr, flat, beyond)  # [7, row_capacity]
    flat_rows[:4].masked_fill_(beyond, -1)
    flat_rows[4:].masked_fill_(beyond, 0)
    return {
        "qo_indptr": indptr.int(),
        "draft_tokens": flat_rows[0],
        "positions": flat_rows[4],
        "parent_row": flat_rows[1],
        "first_child_row": flat_rows[2],
        "next_sibling_row": flat_rows[3],
        # Two 64-bit words are four of 32 bits, low ones first, on every machine we run on.
        "ancestor_bits": flat_rows[5:].t().contiguous().view(torch.uint32),
        **refusals.words(),
    }


def _check_tree(
    refusals: Refusals, prev_indexs: Tensor, selected: Tensor, ids: Tensor, node_count: Tensor
) -> None:
    parent = prev_indexs.clamp(0, ids.shape[0] - 1)
    is_linked = (prev_indexs == parent) & (prev_indexs < ids) & selected.gather(1, parent)
    is_bad = selected & ~(is_linked & (ids < node_count[:, None]))
    is_bad[:, 0] = ~selected[:, 0] | (prev_indexs[:, 0] != -1)
    refusals.add(Status.BROKEN_TREE, is_bad.any(dim=1), first_true(is_bad))


def _child_links(parent: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """First child and next sibling of every row, -1 for none; parent = Q means none. [B, Q]"""
    batch, n_slots = parent.shape
    first = torch.full((batch, n_slots + 1), n_slots, dtype=torch.int64, device=parent.device)
    first = first.scatter_reduce_(1, parent, rows.expand(batch, n_slots), "amin")[:, :n_slots]
    # Stable by parent: siblings become neighbours and keep the order of their rows.
    ordered, order = torch.sort(parent, dim=1, stable=True)
    is_followed = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < n_slots)
    following = torch.full_like(parent, -1)
    following[:, :-1] = torch.where(is_followed, order[:, 1:], -1)
    next_sibling = torch.empty_like(parent).scatter_(1, order, following)
    return first.masked_fill(first == n_slots, -1), next_sibling


def _ancestor_words(parent: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """128 ancestor-or-self bits of every row as two int64 words; parent = Q means none. [B, Q]"""
    batch, n_slots = parent.shape
    bit = torch.ones_like(rows) << (rows & 63)
    words = torch.zeros(2, batch, n_slots + 1, dtype=torch.int64, device=parent.device)
    words[0, :, : min(n_slots, 64)] = bit[:64]
    words[1, :, 64:n_slots] = bit[64:]
    jump = torch.full((batch, n_slots + 1), n_slots, dtype=torch.int64, device=parent.device)
    jump[:, :n_slots] = parent
    # Pointer doubling: a round joins twice as many generations. The last column is the end.
    for _ in range((n_slots - 1).bit_length()):
        words |= words.gather(2, jump.expand(2, batch, n_slots + 1))
        jump = jump.gather(1, jump)
    return words[0, :, :n_slots], words[1, :, :n_slots]


def _flatten(fields: Tensor, indptr: Tensor, flat: Tensor, beyond: Tensor) -> Tensor:
    """Rows of `fields[n, B, Q]` one after the other, request b at `indptr[b]`. [n, rows]"""
    n_fields, batch, n_slots = fields.shape
    if batch == 0:
        return fields.new_zeros(n_fields, flat.shape[0])
    owner = torch.searchsorted(indptr[1:], flat, right=True).clamp_max_(batch - 1)
    source = owner * n_slots + (flat - indptr.take(owner))
    return fields.flatten(1).index_select(1, source.masked_fill_(beyond, 0))


@takes_call
def fused_tree_mask_operator(call: TreeMask) -> dict[str, Tensor]:
    """K4: KV slot lists and visibility packed to bits, segment by segment."""
    refusals = Refusals(call.seq_len.shape[0], call.seq_len.device)
    spans = request_spans(refusals, call.qo_indptr, call.ancestor_bits.shape[0])
    check_table_span(refusals, call, spans.count)
    columns = (call.seq_len + spans.count).masked_fill_(refusals.refused, 0)
    n_bytes = (spans.count * columns + 7) >> 3
    asked_slots, asked_bytes = columns.cumsum(0), n_bytes.cumsum(0)
    refusals.add(Status.KV_CAPACITY, asked_slots > call.kv_capacity, asked_slots)
    refusals.add(Status.MASK_CAPACITY, asked_bytes > call.mask_capacity, asked_bytes)
    columns.masked_fill_(refusals.refused, 0)
    kv_indptr = offsets(columns)
    mask_indptr = offsets(n_bytes.masked_fill_(refusals.refused, 0))
    lists = SlotLists(call.req_to_token, call.req_pool_indices, columns)
    kept = Spans(spans.first, spans.count.masked_fill(refusals.refused, 0), spans.n_rows)
    return {
        "kv_indptr": kv_indptr.int(),
        "kv_indices": lists.flatten(kv_indptr, call.kv_capacity),
        "mask_indptr": mask_indptr.int(),
        "packed_mask": _packed_mask(kept, columns, mask_indptr, call),
        **refusals.words(),
    }


def _packed_mask(spans: Spans, columns: Tensor, mask_indptr: Tensor, call: TreeMask) -> Tensor:
    """Visibility bits of all requests: every bit set, then the invisible tree columns cleared.

    Nearly all bits are prefix columns; only the at most 128 tree bits of a row need arithmetic.
    """
    capacity, ancestor_bits, device = call.mask_capacity, call.ancestor_bits, columns.device
    # One byte more than asked for takes what falls beyond the end.
    packed = torch.arange(capacity + 1, dtype=torch.int32, device=device) < mask_indptr[-1]
    packed = packed.int().mul_(255)
    if spans.n_rows == 0:
        return packed[:capacity].byte()
    batch = columns.shape[0]
    n_bits = spans.count * columns
    pad = 255 & ~((1 << (8 - (-n_bits & 7))) - 1)
    packed.scatter_add_(0, (mask_indptr[1:] - 1).clamp_min_(0), -pad.int())

    words = ancestor_bits.view(torch.int32).index_select(0, spans.flat.view(-1))
    tree = (
        words.view(torch.uint8).view(batch, spans.slots.shape[0], 16).int()
    )  # [B, Q, 16] tree columns, 8 a byte
    bytes_of_row = torch.arange(16, device=device)
    is_column = (1 << (spans.count[:, None] - 8 * bytes_of_row).clamp_(0, 8)) - 1  # [B, 16]
    hidden = ~tree & is_column.int()[:, None] & -spans.is_row.int()[:, :, None]
    # [B, Q] first bit of each row's tree columns in its segment
    bit = spans.slots * columns[:, None] + (columns - spans.count)[:, None]
    shifted = hidden << (bit & 7).int()[:, :, None]
    byte = ((bit >> 3) + mask_indptr[:-1, None])[:, :, None] + bytes_of_row
    byte = byte.clamp_(0, capacity).view(-1)
    packed.scatter_add_(0, byte, -(shifted & 255).view(-1))
    packed.scatter_add_(0, (byte + 1).clamp_max_(capacity), -(shifted >> 8).view(-1))
    return packed[:capacity].byte()


@takes_call
def calculate_verify_kv_qo_ms(call: VerifyOffsets) -> dict[str, Tensor]:
    """K9: running offsets of rows, KV entries and mask bytes, with an overflow check."""
    batch = call.seq_len.shape[0]
    refusals = Refusals(batch, call.seq_len.device)
    is_outside = (call.verify_count < 0) | (call.verify_count > MAX_VERIFY)
    refusals.add(Status.OUT_OF_RANGE, is_outside, call.verify_count)
    refusals.add(Status.NEGATIVE_LENGTH, call.seq_len < 0, call.seq_len)
    rows = call.verify_count.masked_fill(refusals.refused, 0)
    # Far beyond int32 already; a bound keeps the sums of 128 requests within int64.
    columns = call.seq_len.clamp_max(1 << 40).masked_fill_(refusals.refused, 0) + rows
    sizes = torch.stack([rows, columns, (rows * columns + 7) >> 3])  # [3, B]
    asked = sizes.cumsum(dim=1).amax(dim=0)
    refusals.add(Status.OVERFLOW, asked > INT32_MAX, asked.clamp(max=LARGEST_NAMED))
    indptr = torch.zeros(3, batch + 1, dtype=torch.int64, device=call.seq_len.device)
    torch.cumsum(sizes.masked_fill_(refusals.refused, 0), 1, out=indptr[:, 1:])
    qo_indptr, kv_indptr, mask_indptr = indptr.int().unbind()
    return {
        "qo_indptr": qo_indptr,
        "kv_indptr": kv_indptr,
        "mask_indptr": mask_indptr,
        **refusals.words(),
    }
