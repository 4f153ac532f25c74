"""Reference of the round's rows, R1 to R4: where they stand, what they write and see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_rows import DraftLevels, DraftRows, PromptRows, VerifyRows
from aerie.kernels.numpy_types import Int32s
from aerie.kernels.ragged import counted


@takes_call
def place_verify_rows(call: VerifyRows) -> dict[str, Any]:
    """R1: the rows of chosen trees in the buffers of a bucket."""
    n_rows = len(call.draft_tokens)
    rows, lists = call.qo_indptr.tolist(), call.kv_indptr.tolist()
    call.kv_indices[lists[-1] :] = 0
    kv_slots = np.zeros(n_rows, np.int64)
    visible = np.ones(n_rows, np.int32)
    column_positions = np.empty(len(call.kv_indices), np.int32)
    column_positions[lists[-1] :] = 0
    for b, prefix in enumerate(call.seq_len.tolist()):
        first, end, begin, stop = rows[b], rows[b + 1], lists[b], lists[b + 1]
        visible[first:end] = prefix
        column_positions[begin:stop] = counted(0, stop - begin)
        tree = begin + prefix
        n_tree = min(end - first, stop - tree)
        if n_tree > 0:
            column_positions[tree : tree + n_tree] = call.positions[first : first + n_tree]
            kv_slots[first : first + n_tree] = call.kv_indices[tree : tree + n_tree]
    return {
        "tokens": np.maximum(call.draft_tokens, 0),
        "kv_slots": kv_slots,
        "visible_prefix": visible,
        "row_indptr": _with_end(call.qo_indptr, n_rows),
        "column_indptr": _with_end(call.kv_indptr, lists[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(call.seq_len, 0),
    }


@takes_call
def place_prompt_rows(call: PromptRows) -> dict[str, Any]:
    """R2: the rows of prompt chunks in the buffers of a bucket."""
    rows, lists = call.qo_indptr.tolist(), call.kv_indptr.tolist()
    call.kv_indices[lists[-1] :] = 0
    positions = np.zeros(call.row_capacity, np.int64)
    kv_slots = np.zeros(call.row_capacity, np.int64)
    column_positions = np.empty(len(call.kv_indices), np.int32)
    column_positions[lists[-1] :] = 0
    for b, here in enumerate(call.start.tolist()):
        first, end, begin, stop = rows[b], rows[b + 1], lists[b], lists[b + 1]
        column_positions[begin:stop] = counted(0, stop - begin)
        positions[first:end] = counted(here, here + end - first)
        n_listed = min(end - first, stop - begin - here)
        if n_listed > 0:
            kv_slots[first : first + n_listed] = call.kv_indices[begin + here :][:n_listed]
    return {
        "positions": positions,
        "kv_slots": kv_slots,
        "visible_prefix": (positions + 1).astype(np.int32),
        "row_indptr": _with_end(call.qo_indptr, call.row_capacity),
        "column_indptr": _with_end(call.kv_indptr, lists[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(call.start, 0),
    }


def _with_end(values: NDArray[Any], end: int) -> Int32s:
    """The entry of the inert request behind those of the others."""
    made = np.empty(len(values) + 1, np.int32)
    made[:-1] = values
    made[-1] = end
    return made


@takes_call
def place_draft_rows(call: DraftRows) -> dict[str, Any]:
    """R3: the rows a draft takes in."""
    batch, width = len(call.seq_len), call.req_to_token.shape[1]
    own = np.arange(call.run)
    behind = (call.count - 1)[:, None]
    # [B, run]; further rows stand where the last one does
    positions = np.minimum(own, behind) + (call.seq_len - call.count)[:, None]
    np.maximum(positions, 0, out=positions)
    kv_slots = np.empty((batch, call.run), np.int64)
    table_row, place = call.req_pool_indices[:, None], np.minimum(positions, width - 1)
    kv_slots[:] = call.req_to_token[table_row, place]
    kv_slots *= own <= behind
    return {
        "positions": positions.reshape(-1),
        "kv_slots": kv_slots.reshape(-1),
        "visible_prefix": (positions + 1).astype(np.int32).reshape(-1),
        "last": np.maximum(behind[:, 0], 0) + np.arange(0, batch * call.run, call.run),
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
