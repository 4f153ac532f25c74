"""Attention whose bits depend on the row alone, whatever else shares the batch.

Each row gathers exactly the keys it sees, in the order of their positions, and attends to them in
one product of its own. Plain decoding and a tree then run the same operations on the same values,
so speculation on and off agree bit for bit. Slow by design: `numerics="exact"`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from aerie.attention.contract import Attend, LayerAttention, Reach
from aerie.attention.pytorch import Walk, attend_dense
from aerie.attention.rows import Rows


def prepare(rows: Rows, reaches: Iterable[Reach]) -> Attend:
    """Find every row's own keys once; reads the batch's indices on the host."""
    walk = Walk.of(rows)
    owned = [(b, row) for b in range(rows.n_requests) for row in range(*walk.qo_indptr[b : b + 2])]
    seen = {reach: [_keys(walk, b, row, reach) for b, row in owned] for reach in set(reaches)}

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


def _keys(walk: Walk, request: int, row: int, reach: Reach) -> Tensor:
    """Slots a row sees, ascending by position; a path has one node at every position."""
    base, end = walk.kv_indptr[request : request + 2]
    (visible,) = walk.seen(request, slice(row, row + 1), slice(0, end - base))
    positions = walk.column_positions[base:end]
    if reach.window is not None:
        near = positions > walk.positions[row] - reach.window
        visible = visible & (near | (positions < reach.n_sink_tokens))
    columns = np.flatnonzero(visible)
    order = np.argsort(positions[columns], kind="stable")
    return torch.from_numpy(walk.kv_indices[base:end][columns[order]]).long()
