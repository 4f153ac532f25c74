"""Reference of the round's rows, R1 to R4: where they stand, what they write and see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_rows import DraftLevels, DraftRows, PromptRows, VerifyRows
from aerie.kernels.numpy_types import Int32s


@takes_call
def place_verify_rows(call: VerifyRows) -> dict[str, Any]:
    """R1: the rows of chosen trees in the buffers of a bucket."""
    n_rows, capacity = len(call.draft_tokens), len(call.kv_indices)
    call.kv_indices[call.kv_indptr[-1] :] = 0
    kv_slots = np.zeros(n_rows, np.int64)
    visible = np.ones(n_rows, np.int32)
    column_positions = np.zeros(capacity, np.int32)
    for b, prefix in enumerate(call.seq_len):
        rows = range(call.qo_indptr[b], call.qo_indptr[b + 1])
        columns = range(call.kv_indptr[b], call.kv_indptr[b + 1])
        for place, column in enumerate(columns):
            row = rows.start + place - prefix  # of the tree, if the column is
            is_tree = rows.start <= row < rows.stop
            column_positions[column] = call.positions[row] if is_tree else place
        for i, row in enumerate(rows):
            if prefix + i < len(columns):
                kv_slots[row] = call.kv_indices[columns[prefix + i]]
            visible[row] = prefix
    return {
        "tokens": np.maximum(call.draft_tokens, 0),
        "kv_slots": kv_slots,
        "visible_prefix": visible,
        "row_indptr": _with_end(call.qo_indptr, n_rows),
        "column_indptr": _with_end(call.kv_indptr, call.kv_indptr[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(call.seq_len, 0),
    }


@takes_call
def place_prompt_rows(call: PromptRows) -> dict[str, Any]:
    """R2: the rows of prompt chunks in the buffers of a bucket."""
    call.kv_indices[call.kv_indptr[-1] :] = 0
    positions = np.zeros(call.row_capacity, np.int64)
    kv_slots = np.zeros(call.row_capacity, np.int64)
    visible = np.ones(call.row_capacity, np.int32)
    column_positions = np.zeros(len(call.kv_indices), np.int32)
    for b, first in enumerate(call.start):
        columns = range(call.kv_indptr[b], call.kv_indptr[b + 1])
        for place, column in enumerate(columns):
            column_positions[column] = place
        for i, row in enumerate(range(call.qo_indptr[b], call.qo_indptr[b + 1])):
            positions[row] = first + i
            visible[row] = first + i + 1
            if first + i < len(columns):
                kv_slots[row] = call.kv_indices[columns[first + i]]
    return {
        "positions": positions,
        "kv_slots": kv_slots,
        "visible_prefix": visible,
        "row_indptr": _with_end(call.qo_indptr, call.row_capacity),
        "column_indptr": _with_end(call.kv_indptr, call.kv_indptr[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(call.start, 0),
    }


def _with_end(values: NDArray[Any], end: int) -> Int32s:
    """The entry of the inert request behind those of the others."""
    return np.append(values, end).astype(np.int32)


@takes_call
def place_draft_rows(call: DraftRows) -> dict[str, Any]:
    """R3: the rows a draft takes in."""
    batch, width = len(call.seq_len), call.req_to_token.shape[1]
    positions = np.zeros((batch, call.run), np.int64)
    kv_slots = np.zeros((batch, call.run), np.int64)
    last = np.zeros(batch, np.int64)
    for b in range(batch):
        for i in range(call.run):
            is_real = i < call.count[b]
            own = i if is_real else call.count[b] - 1
            positions[b, i] = max(call.seq_len[b] - call.count[b] + own, 0)
            if is_real:
                place = min(positions[b, i], width - 1)
                kv_slots[b, i] = call.req_to_token[call.req_pool_indices[b], place]
        last[b] = b * call.run + max(call.count[b] - 1, 0)
    return {
        "positions": positions.reshape(-1),
        "kv_slots": kv_slots.reshape(-1),
        "visible_prefix": (positions.reshape(-1) + 1).astype(np.int32),
        "last": last,
        "tree_start": call.seq_len.astype(np.int32),
    }


@takes_call
def place_draft_levels(call: DraftLevels) -> dict[str, Any]:
    """R4: the nodes a draft is fed, and the columns of its lists."""
    width = call.req_to_token.shape[1]
    call.kv_indices[call.kv_indptr[-1] :] = 0
    column_positions = np.zeros(len(call.kv_indices), np.int32)
    for b, prefix in enumerate(call.seq_len):
        for place, column in enumerate(range(call.kv_indptr[b], call.kv_indptr[b + 1])):
            node = place - prefix
            is_fed = 0 <= node < len(call.node_level)
            column_positions[column] = prefix + call.node_level[node] if is_fed else place
    rows = [
        (prefix + level, call.req_to_token[pool_row, min(prefix + node, width - 1)], prefix)
        for level in np.unique(call.node_level)
        for prefix, pool_row in zip(call.seq_len, call.req_pool_indices, strict=True)
        for node in np.nonzero(call.node_level == level)[0]
    ]
    fed = np.array(rows, np.int64).reshape(-1, 3)
    return {
        "fed_positions": fed[:, 0].copy(),
        "fed_slots": fed[:, 1].copy(),
        "fed_visible": fed[:, 2].astype(np.int32),
        "column_positions": column_positions,
    }
