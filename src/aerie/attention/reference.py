"""Attention in NumPy, one row and one head at a time: the definition the others are held to."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.attention.contract import Attend, LayerAttention, Reach
from aerie.attention.rows import BITS_PER_WORD, MAX_TREE_COLUMNS, Rows

FloatArray = NDArray[np.float64]


def sees(rows: Rows, row: int, request: int, column: int, reach: Reach) -> bool:
    """Whether a row attends to a column of its request."""
    bit = column - int(rows.tree_start[request])
    is_ancestor = False
    if 0 <= bit < MAX_TREE_COLUMNS:
        word = int(rows.ancestor_bits[row, bit // BITS_PER_WORD]) & 0xFFFFFFFF
        is_ancestor = bool(word >> (bit % BITS_PER_WORD) & 1)
    if column >= int(rows.visible_prefix[row]) and not is_ancestor:
        return False
    key_position = int(rows.column_positions[int(rows.kv_indptr[request]) + column])
    if reach.window is None or key_position < reach.n_sink_tokens:
        return True
    return key_position > int(rows.positions[row]) - reach.window


def attend_row(
    query: FloatArray, keys: FloatArray, values: FloatArray, scale: float, sink: float | None
) -> FloatArray:
    """One head of one row over the keys it sees: query [dim], keys and values [seen, dim]."""
    scores = keys @ query * scale
    top = max(scores.max(), -np.inf if sink is None else sink)
    weights = np.exp(scores - top)
    # The sink takes its share of the probability and contributes no value.
    total = weights.sum() + (0.0 if sink is None else np.exp(sink - top))
    result: FloatArray = weights @ values / total
    return result


def attend(
    rows: Rows, queries: FloatArray, keys: FloatArray, values: FloatArray, layer: LayerAttention
) -> FloatArray:
    """All rows: queries [rows, heads, dim], keys and values [slots, kv_heads, dim]."""
    n_heads, n_kv_heads = queries.shape[1], keys.shape[1]
    out = np.zeros_like(queries)
    for request in range(rows.n_requests):
        start, end = int(rows.kv_indptr[request]), int(rows.kv_indptr[request + 1])
        slots = rows.kv_indices[start:end].cpu().numpy()
        for row in range(int(rows.qo_indptr[request]), int(rows.qo_indptr[request + 1])):
            seen = [c for c in range(end - start) if sees(rows, row, request, c, layer.reach)]
            for head in range(n_heads):
                kv_head = head * n_kv_heads // n_heads
                sink = None if layer.sink_logits is None else float(layer.sink_logits[head])
                out[row, head] = attend_row(
                    queries[row, head],
                    keys[slots[seen], kv_head],
                    values[slots[seen], kv_head],
                    layer.scale,
                    sink,
                )
    return out


def prepare(rows: Rows, reaches: Iterable[Reach]) -> Attend:
    """The reference as a backend; `reaches` needs no preparation."""

    def run(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention) -> Tensor:
        wide = [t.detach().cpu().double().numpy() for t in (queries, keys, values)]
        out = attend(rows, wide[0], wide[1], wide[2], layer)
        return torch.from_numpy(out).to(device=queries.device, dtype=queries.dtype)

    return run
