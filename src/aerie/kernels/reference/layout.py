"""Reference of the verify layout: K10c rows, K4 packed masks, K9 offsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import INT32_MAX, MAX_VERIFY
from aerie.kernels.cards.layout import LARGEST_NAMED, NodeData, TreeMask, VerifyOffsets
from aerie.kernels.numpy_types import Ints
from aerie.kernels.ragged import check_table_span, request_spans, running
from aerie.kernels.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def update_node_data(call: NodeData) -> dict[str, Any]:
    """K10c: the chosen nodes as flat rows with links and ancestor bits."""
    refusals = Refusals(len(call.seq_len))
    tokens = np.full(call.row_capacity, -1, np.int64)
    positions = np.zeros(call.row_capacity, np.int64)
    parent_row = np.full(call.row_capacity, -1, np.int64)
    first_child = np.full(call.row_capacity, -1, np.int64)
    next_sibling = np.full(call.row_capacity, -1, np.int64)
    bits = np.zeros((call.row_capacity, 4), np.uint32)
    indptr = np.zeros(len(call.seq_len) + 1, np.int32)
    asked = 0
    for b in range(len(call.seq_len)):
        indptr[b + 1] = indptr[b]
        nodes = np.flatnonzero(call.selected[b])
        _check_tree(refusals, b, nodes, call)
        if refusals.status[b]:
            continue
        asked += len(nodes)
        if asked > call.row_capacity:
            refusals.refuse(b, Status.SLOT_CAPACITY, asked)
            continue
        row_of = {int(node): row for row, node in enumerate(nodes)}
        first = int(indptr[b])
        last_child: dict[int, int] = {}
        for row, node in enumerate(nodes):
            flat = first + row
            tokens[flat] = call.cumu_tokens[b, node]
            depth = call.cumu_deltas[b, node]
            positions[flat] = (call.seq_len[b : b + 1] + depth)[0]  # wraps, in silence
            if row > 0:
                parent = row_of[int(call.prev_indexs[b, node])]
                parent_row[flat] = parent
                bits[flat] = bits[first + parent]
                if parent in last_child:
                    next_sibling[first + last_child[parent]] = row
                else:
                    first_child[first + parent] = row
                last_child[parent] = row
            bits[flat, row // 32] |= np.uint32(1 << (row % 32))
        indptr[b + 1] = first + len(nodes)
    return {
        "qo_indptr": indptr,
        "draft_tokens": tokens,
        "positions": positions,
        "parent_row": parent_row,
        "first_child_row": first_child,
        "next_sibling_row": next_sibling,
        "ancestor_bits": bits,
        **refusals.words(),
    }


def _check_tree(refusals: Refusals, b: int, nodes: Ints, call: NodeData) -> None:
    tokens, parents, node_count = call.cumu_tokens[b], call.prev_indexs[b], call.node_count[b]
    if not 1 <= node_count <= len(tokens):
        refusals.refuse(b, Status.OUT_OF_RANGE, int(node_count))
        return
    if call.seq_len[b] < 0:
        refusals.refuse(b, Status.NEGATIVE_LENGTH, int(call.seq_len[b]))
        return
    chosen = set(nodes.tolist())
    if 0 not in chosen:
        refusals.refuse(b, Status.BROKEN_TREE, 0)
    for node in nodes:
        parent = int(parents[node])
        is_linked = parent == -1 if node == 0 else parent < node and parent in chosen
        if node >= node_count or not is_linked:
            refusals.refuse(b, Status.BROKEN_TREE, int(node))
    seen: set[tuple[int, int]] = set()
    for node in nodes:
        key = (int(parents[node]), int(tokens[node]))
        if key in seen:
            refusals.refuse(b, Status.DUPLICATE_SIBLING, int(tokens[node]))
        seen.add(key)
    if len(nodes) > MAX_VERIFY:
        refusals.refuse(b, Status.ROW_CAPACITY, len(nodes))


@takes_call
def fused_tree_mask_operator(call: TreeMask) -> dict[str, Any]:
    """K4: KV slot lists and visibility packed to bits, segment by segment."""
    refusals = Refusals(len(call.seq_len))
    spans = request_spans(refusals, call.qo_indptr, len(call.ancestor_bits))
    check_table_span(refusals, call, spans.count)
    is_kept = refusals.status == 0
    columns = np.where(is_kept, call.seq_len, 0) + spans.count * is_kept
    n_bytes = (spans.count * columns + 7) >> 3
    asked, asked_bytes = columns.cumsum(), n_bytes.cumsum()
    refusals.add(Status.KV_CAPACITY, asked > call.kv_capacity, asked)
    refusals.add(Status.MASK_CAPACITY, asked_bytes > call.mask_capacity, asked_bytes)
    if refusals.found:
        is_kept = refusals.status == 0
        columns, n_bytes = columns * is_kept, n_bytes * is_kept
    mask_indptr, kv_indptr = running(n_bytes), running(columns)
    kv_indices = np.full(call.kv_capacity, -1, np.int32)
    packed = np.zeros(call.mask_capacity, np.uint8)
    bits = np.unpackbits(
        np.ascontiguousarray(call.ancestor_bits).view(np.uint8), axis=1, bitorder="little"
    )
    for request, rows in enumerate(spans.ranges()):
        length, begin = columns.item(request), mask_indptr.item(request)
        if not length or not is_kept.item(request):
            continue
        listed = kv_indices[kv_indptr.item(request) :][:length]
        listed[:] = call.req_to_token[call.req_pool_indices.item(request), :length]
        visible = np.ones((len(rows), length), np.uint8)
        visible[:, length - len(rows) :] = bits[rows.start : rows.stop, : len(rows)]
        segment = np.packbits(visible, bitorder="little")
        packed[begin : begin + len(segment)] = segment
    return {
        "kv_indptr": kv_indptr.astype(np.int32),
        "kv_indices": kv_indices,
        "mask_indptr": mask_indptr.astype(np.int32),
        "packed_mask": packed,
        **refusals.words(),
    }


@takes_call
def calculate_verify_kv_qo_ms(call: VerifyOffsets) -> dict[str, Any]:
    """K9: running offsets of rows, KV entries and mask bytes, with an overflow check."""
    batch = len(call.seq_len)
    refusals = Refusals(batch)
    offsets = np.zeros((3, batch + 1), np.int64)
    asked = [0, 0, 0]
    for b in range(batch):
        offsets[:, b + 1] = offsets[:, b]
        rows, prefix = int(call.verify_count[b]), int(call.seq_len[b])
        if not 0 <= rows <= MAX_VERIFY:
            refusals.refuse(b, Status.OUT_OF_RANGE, rows)
        if prefix < 0:
            refusals.refuse(b, Status.NEGATIVE_LENGTH, prefix)
        if refusals.status[b]:
            continue
        columns = prefix + rows
        sizes = [rows, columns, (rows * columns + 7) // 8]
        # Python integers: what is asked for may pass int64 where the offsets may not.
        asked = [total + size for total, size in zip(asked, sizes, strict=True)]
        if max(asked) > INT32_MAX:
            refusals.refuse(b, Status.OVERFLOW, min(max(asked), LARGEST_NAMED))
            continue
        offsets[:, b + 1] += sizes
    names = ("qo_indptr", "kv_indptr", "mask_indptr")
    outputs = {name: offsets[i].astype(np.int32) for i, name in enumerate(names)}
    return {**outputs, **refusals.words()}
