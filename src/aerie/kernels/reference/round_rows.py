"""Reference of the round's rows, R1 to R4: where they stand, what they write and see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]


def place_verify_rows(
    *,
    draft_tokens: Ints,
    positions: Ints,
    qo_indptr: Slots,
    kv_indptr: Slots,
    kv_indices: Slots,
    seq_len: Ints,
) -> dict[str, Any]:
    """R1: the rows of chosen trees in the buffers of a bucket."""
    n_rows, capacity = len(draft_tokens), len(kv_indices)
    kv_indices[kv_indptr[-1] :] = 0
    kv_slots = np.zeros(n_rows, np.int64)
    visible = np.ones(n_rows, np.int32)
    column_positions = np.zeros(capacity, np.int32)
    for b, prefix in enumerate(seq_len):
        rows = range(qo_indptr[b], qo_indptr[b + 1])
        columns = range(kv_indptr[b], kv_indptr[b + 1])
        for place, column in enumerate(columns):
            row = rows.start + place - prefix  # of the tree, if the column is
            is_tree = rows.start <= row < rows.stop
            column_positions[column] = positions[row] if is_tree else place
        for i, row in enumerate(rows):
            if prefix + i < len(columns):
                kv_slots[row] = kv_indices[columns[prefix + i]]
            visible[row] = prefix
    return {
        "tokens": np.maximum(draft_tokens, 0),
        "kv_slots": kv_slots,
        "visible_prefix": visible,
        "row_indptr": _with_end(qo_indptr, n_rows),
        "column_indptr": _with_end(kv_indptr, kv_indptr[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(seq_len, 0),
    }


def place_prompt_rows(
    *, qo_indptr: Slots, start: Ints, kv_indptr: Slots, kv_indices: Slots, row_capacity: int
) -> dict[str, Any]:
    """R2: the rows of prompt chunks in the buffers of a bucket."""
    kv_indices[kv_indptr[-1] :] = 0
    positions = np.zeros(row_capacity, np.int64)
    kv_slots = np.zeros(row_capacity, np.int64)
    visible = np.ones(row_capacity, np.int32)
    column_positions = np.zeros(len(kv_indices), np.int32)
    for b, first in enumerate(start):
        columns = range(kv_indptr[b], kv_indptr[b + 1])
        for place, column in enumerate(columns):
            column_positions[column] = place
        for i, row in enumerate(range(qo_indptr[b], qo_indptr[b + 1])):
            positions[row] = first + i
            visible[row] = first + i + 1
            if first + i < len(columns):
                kv_slots[row] = kv_indices[columns[first + i]]
    return {
        "positions": positions,
        "kv_slots": kv_slots,
        "visible_prefix": visible,
        "row_indptr": _with_end(qo_indptr, row_capacity),
        "column_indptr": _with_end(kv_indptr, kv_indptr[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(start, 0),
    }


def _with_end(values: NDArray[Any], end: int) -> Slots:
    """The entry of the inert request behind those of the others."""
    return np.append(values, end).astype(np.int32)


def place_draft_rows(
    *, seq_len: Ints, count: Ints, req_to_token: Slots, req_pool_indices: Ints, run: int
) -> dict[str, Any]:
    """R3: the rows a draft takes in."""
    batch, width = len(seq_len), req_to_token.shape[1]
    positions = np.zeros((batch, run), np.int64)
    kv_slots = np.zeros((batch, run), np.int64)
    last = np.zeros(batch, np.int64)
    for b in range(batch):
        for i in range(run):
            is_real = i < count[b]
            own = i if is_real else count[b] - 1
            positions[b, i] = max(seq_len[b] - count[b] + own, 0)
            if is_real:
                place = min(positions[b, i], width - 1)
                kv_slots[b, i] = req_to_token[req_pool_indices[b], place]
        last[b] = b * run + max(count[b] - 1, 0)
    return {
        "positions": positions.reshape(-1),
        "kv_slots": kv_slots.reshape(-1),
        "visible_prefix": (positions.reshape(-1) + 1).astype(np.int32),
        "last": last,
        "tree_start": seq_len.astype(np.int32),
    }


def place_draft_levels(
    *,
    seq_len: Ints,
    req_to_token: Slots,
    req_pool_indices: Ints,
    node_level: Ints,
    kv_indptr: Slots,
    kv_indices: Slots,
) -> dict[str, Any]:
    """R4: the nodes a draft is fed, and the columns of its lists."""
    width = req_to_token.shape[1]
    kv_indices[kv_indptr[-1] :] = 0
    column_positions = np.zeros(len(kv_indices), np.int32)
    for b, prefix in enumerate(seq_len):
        for place, column in enumerate(range(kv_indptr[b], kv_indptr[b + 1])):
            node = place - prefix
            is_fed = 0 <= node < len(node_level)
            column_positions[column] = prefix + node_level[node] if is_fed else place
    rows = [
        (prefix + level, req_to_token[pool_row, min(prefix + node, width - 1)], prefix)
        for level in np.unique(node_level)
        for prefix, pool_row in zip(seq_len, req_pool_indices, strict=True)
        for node in np.nonzero(node_level == level)[0]
    ]
    fed = np.array(rows, np.int64).reshape(-1, 3)
    return {
        "fed_positions": fed[:, 0].copy(),
        "fed_slots": fed[:, 1].copy(),
        "fed_visible": fed[:, 2].astype(np.int32),
        "column_positions": column_positions,
    }
