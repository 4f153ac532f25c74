"""NumPy rows of the round, R1 to R4.

A batch on a CPU has few requests and long lists: a handful of slices for each request touches every
column once, where operations on whole arrays would touch it ten times.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_rows import DraftLevels, DraftRows, PromptRows, VerifyRows
from aerie.kernels.numpy_types import Int32s


@cache
def _counting(bits: int) -> Int32s:
    numbers = np.arange(1 << bits, dtype=np.int32)
    numbers.flags.writeable = False
    return numbers


def counted(start: int, stop: int) -> Int32s:
    """start, start + 1, ... as a view of numbers that are kept."""
    return _counting(max(stop, 1).bit_length())[start:stop]


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
    lists, n_fed = call.kv_indptr.tolist(), len(call.node_level)
    call.kv_indices[lists[-1] :] = 0
    column_positions = np.empty(len(call.kv_indices), np.int32)
    column_positions[lists[-1] :] = 0
    batch, width = len(call.seq_len), call.req_to_token.shape[1]
    fed = np.arange(n_fed)
    positions = call.seq_len[:, None] + call.node_level
    for b, prefix in enumerate(call.seq_len.tolist()):
        begin, stop = lists[b], lists[b + 1]
        column_positions[begin:stop] = counted(0, stop - begin)
        tree = begin + prefix
        if tree < stop:
            n_tree = min(n_fed, stop - tree)
            column_positions[tree : tree + n_tree] = positions[b, :n_tree]
    places = np.minimum(call.seq_len[:, None] + fed, width - 1)
    slots = call.req_to_token[call.req_pool_indices[:, None], places]
    visible = np.repeat(call.seq_len, n_fed)
    if batch > 1:
        # Level by level, inside a level request by request. [B, F]
        before = call.node_level.searchsorted(call.node_level)
        wide = call.node_level.searchsorted(call.node_level, "right") - before
        place = (batch - 1) * before + fed + np.arange(batch)[:, None] * wide
        order = np.empty(batch * n_fed, np.int64)
        order[place.reshape(-1)] = np.arange(batch * n_fed)
        positions, slots, visible = positions.take(order), slots.take(order), visible.take(order)
    return {
        "fed_positions": positions.reshape(-1),
        "fed_slots": slots.reshape(-1).astype(np.int64),
        "fed_visible": visible.astype(np.int32),
        "column_positions": column_positions,
    }
