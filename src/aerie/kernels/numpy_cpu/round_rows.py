"""NumPy rows of the round, R1 to R4.

A batch on a CPU has few requests and long lists: a handful of slices for each request touches every
column once, where operations on whole arrays would touch it ten times.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]


@cache
def _counting(bits: int) -> Slots:
    numbers = np.arange(1 << bits, dtype=np.int32)
    numbers.flags.writeable = False
    return numbers


def counted(start: int, stop: int) -> Slots:
    """start, start + 1, ... as a view of numbers that are kept."""
    return _counting(max(stop, 1).bit_length())[start:stop]


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
    n_rows = len(draft_tokens)
    rows, lists = qo_indptr.tolist(), kv_indptr.tolist()
    kv_indices[lists[-1] :] = 0
    kv_slots = np.zeros(n_rows, np.int64)
    visible = np.ones(n_rows, np.int32)
    column_positions = np.empty(len(kv_indices), np.int32)
    column_positions[lists[-1] :] = 0
    for b, prefix in enumerate(seq_len.tolist()):
        first, end, begin, stop = rows[b], rows[b + 1], lists[b], lists[b + 1]
        visible[first:end] = prefix
        column_positions[begin:stop] = counted(0, stop - begin)
        tree = begin + prefix
        n_tree = min(end - first, stop - tree)
        if n_tree > 0:
            column_positions[tree : tree + n_tree] = positions[first : first + n_tree]
            kv_slots[first : first + n_tree] = kv_indices[tree : tree + n_tree]
    return {
        "tokens": np.maximum(draft_tokens, 0),
        "kv_slots": kv_slots,
        "visible_prefix": visible,
        "row_indptr": _with_end(qo_indptr, n_rows),
        "column_indptr": _with_end(kv_indptr, lists[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(seq_len, 0),
    }


def place_prompt_rows(
    *, qo_indptr: Slots, start: Ints, kv_indptr: Slots, kv_indices: Slots, row_capacity: int
) -> dict[str, Any]:
    """R2: the rows of prompt chunks in the buffers of a bucket."""
    rows, lists = qo_indptr.tolist(), kv_indptr.tolist()
    kv_indices[lists[-1] :] = 0
    positions = np.zeros(row_capacity, np.int64)
    kv_slots = np.zeros(row_capacity, np.int64)
    column_positions = np.empty(len(kv_indices), np.int32)
    column_positions[lists[-1] :] = 0
    for b, here in enumerate(start.tolist()):
        first, end, begin, stop = rows[b], rows[b + 1], lists[b], lists[b + 1]
        column_positions[begin:stop] = counted(0, stop - begin)
        positions[first:end] = counted(here, here + end - first)
        n_listed = min(end - first, stop - begin - here)
        if n_listed > 0:
            kv_slots[first : first + n_listed] = kv_indices[begin + here :][:n_listed]
    return {
        "positions": positions,
        "kv_slots": kv_slots,
        "visible_prefix": (positions + 1).astype(np.int32),
        "row_indptr": _with_end(qo_indptr, row_capacity),
        "column_indptr": _with_end(kv_indptr, lists[-1] + 1),
        "column_positions": column_positions,
        "tree_start": _with_end(start, 0),
    }


def _with_end(values: NDArray[Any], end: int) -> Slots:
    """The entry of the inert request behind those of the others."""
    made = np.empty(len(values) + 1, np.int32)
    made[:-1] = values
    made[-1] = end
    return made


def place_draft_rows(
    *, seq_len: Ints, count: Ints, req_to_token: Slots, req_pool_indices: Ints, run: int
) -> dict[str, Any]:
    """R3: the rows a draft takes in."""
    batch, width = len(seq_len), req_to_token.shape[1]
    own = np.arange(run)
    behind = (count - 1)[:, None]
    # [B, run]; further rows stand where the last one does
    positions = np.minimum(own, behind) + (seq_len - count)[:, None]
    np.maximum(positions, 0, out=positions)
    kv_slots = np.empty((batch, run), np.int64)
    kv_slots[:] = req_to_token[req_pool_indices[:, None], np.minimum(positions, width - 1)]
    kv_slots *= own <= behind
    return {
        "positions": positions.reshape(-1),
        "kv_slots": kv_slots.reshape(-1),
        "visible_prefix": (positions + 1).astype(np.int32).reshape(-1),
        "last": np.maximum(behind[:, 0], 0) + np.arange(0, batch * run, run),
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
    lists, n_fed = kv_indptr.tolist(), len(node_level)
    kv_indices[lists[-1] :] = 0
    column_positions = np.empty(len(kv_indices), np.int32)
    column_positions[lists[-1] :] = 0
    batch, width = len(seq_len), req_to_token.shape[1]
    fed = np.arange(n_fed)
    positions = seq_len[:, None] + node_level
    for b, prefix in enumerate(seq_len.tolist()):
        begin, stop = lists[b], lists[b + 1]
        column_positions[begin:stop] = counted(0, stop - begin)
        tree = begin + prefix
        if tree < stop:
            n_tree = min(n_fed, stop - tree)
            column_positions[tree : tree + n_tree] = positions[b, :n_tree]
    places = np.minimum(seq_len[:, None] + fed, width - 1)
    slots = req_to_token[req_pool_indices[:, None], places]
    visible = np.repeat(seq_len, n_fed)
    if batch > 1:
        # Level by level, inside a level request by request. [B, F]
        before = node_level.searchsorted(node_level)
        wide = node_level.searchsorted(node_level, "right") - before
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
