"""Attention whose bits depend on the row alone, whatever else shares the batch.

Each row gathers exactly the keys it sees, in the order of their positions, and attends to them in
one product of its own. Plain decoding and a tree then run the same operations on the same values,
so speculation on and off agree bit for bit. Slow by design: `numerics="exact"`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from aerie.attention.contract import Attend, LayerAttention, Reach
from aerie.attention.pytorch import attend_dense
from aerie.attention.rows import BITS_PER_WORD, Rows


def prepare(rows: Rows, reaches: Iterable[Reach]) -> Attend:
    """Find every row's own keys once; reads the batch's indices on the host."""
    visible = _visible(rows)
    seen = {
        reach: [
            _keys(rows, owned, columns, reach)
            for owned, columns in zip(_owned(rows), visible, strict=True)
        ]
        for reach in set(reaches)
    }

    def run(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention) -> Tensor:
        out = torch.empty_like(queries)
        by_group = queries.unflatten(1, (keys.shape[1], -1))  # [rows, kv_heads, group, dim]
        for row, slots in enumerate(seen[layer.reach]):
            # Copies: the product must not see how the pool happens to lie in memory.
            own_keys = keys.index_select(0, slots).transpose(0, 1).contiguous()
            own_values = values.index_select(0, slots).transpose(0, 1).contiguous()
            own = by_group[row].unsqueeze(2)
            attended = attend_dense(own, own_keys, own_values, None, layer)
            out[row] = attended.reshape(queries.shape[1:])
        return out

    return run


def _owned(rows: Rows) -> list[tuple[int, int]]:
    """(row, request) of every row."""
    ends = rows.qo_indptr.tolist()
    return [
        (row, request)
        for request in range(rows.n_requests)
        for row in range(ends[request], ends[request + 1])
    ]


def _visible(rows: Rows) -> list[Tensor]:
    """Which columns each row sees before any window: [columns] bool."""
    ends, column_ends = rows.qo_indptr.tolist(), rows.kv_indptr.tolist()
    masks = [] if rows.mask is None else rows.mask.unpack(ends, column_ends)
    packed = [torch.from_numpy(mask) for mask in masks]
    return [
        packed[request][row - ends[request]]
        if request < len(packed)
        else _by_bits(rows, row, request, column_ends[request + 1] - column_ends[request])
        for row, request in _owned(rows)
    ]


def _by_bits(rows: Rows, row: int, request: int, n_columns: int) -> Tensor:
    column = torch.arange(n_columns)
    offset = column - rows.tree_start[request]
    inside = (offset >= 0) & (offset < 4 * BITS_PER_WORD)
    picked = offset.clamp(0, 4 * BITS_PER_WORD - 1)
    word = rows.ancestor_bits[row][picked // BITS_PER_WORD]
    is_ancestor = inside & ((word >> (picked % BITS_PER_WORD).int()) & 1).bool()
    return (column < rows.visible_prefix[row]) | is_ancestor


def _keys(rows: Rows, owned: tuple[int, int], visible: Tensor, reach: Reach) -> Tensor:
    """Slots a row sees, ascending by position; a path has one node at every position."""
    row, request = owned
    base, end = int(rows.kv_indptr[request]), int(rows.kv_indptr[request + 1])
    positions = rows.column_positions[base:end]
    if reach.window is not None:
        near = positions > rows.positions[row] - reach.window
        visible = visible & (near | (positions < reach.n_sink_tokens))
    columns = visible.nonzero()[:, 0]
    order = torch.argsort(positions[columns], stable=True)
    return rows.kv_indices[base:end][columns[order]].long()
