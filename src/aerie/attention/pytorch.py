"""Attention in PyTorch: blocks of rows on a CPU, one padded batch without host reads on a GPU.

On a CPU the requests are walked one by one: a request whose slots are consecutive is read in
place, without a gather, and columns no row of the block sees are not touched. Measured (one
thread, fp32, 8 requests of 512 columns, 4 query heads of 128 over one KV head): 0.42 ms a layer
against 0.60 ms for a gathered and padded batch through scaled_dot_product_attention (2026-11).

What the walk needs it reads as NumPy arrays, whose small operations cost a third of torch's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from aerie.attention.contract import Attend, LayerAttention, Reach
from aerie.attention.gather import Rooms, Slots, find_slots, pick
from aerie.attention.rows import BITS_PER_WORD, Rows

# A block's scores should stay in cache. 512 rows over 8,192 columns, one thread, ms a layer:
# 32 rows 81, 64 rows 84, 128 rows 113, 256 rows 170; 64 prepares fastest.
BLOCK_ROWS = 64

# Up to so many rows a block goes through scaled_dot_product_attention with a float mask, a row for
# each row and head. One KV head, 4 query heads of 128, us: 6 rows over 512 columns 53 against 70,
# over 8,192 columns 945 against 1,240 (2026-11). The mask of a larger one would not stay in cache.
FUSED_ROWS = 32


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of one request with the columns at least one of them sees."""

    first_row: int
    end_row: int
    slots: Slots
    hidden: Tensor | None  # [rows, columns] bool, true where a row must not look

    @property
    def is_fused(self) -> bool:
        """Small enough for a float mask, or in need of none."""
        return self.hidden is None or self.end_row - self.first_row <= FUSED_ROWS


def prepare(rows: Rows, reaches: Iterable[Reach]) -> Attend:
    """Blocks where host reads are free, padding where they would stall the device."""
    return prepare_padded(rows, reaches) if rows.tokens.is_cuda else prepare_blocks(rows, reaches)


def prepare_blocks(rows: Rows, reaches: Iterable[Reach], rooms: Rooms | None = None) -> Attend:
    """Walk the requests; reads the batch's indices on the host."""
    walk = Walk.of(rows)
    blocks = {reach: _blocks(walk, reach) for reach in set(reaches)}
    masks: dict[tuple[Reach, int], Tensor] = {}  # by reach and first row, made by its first layer

    def mask_of(block: Block, reach: Reach, group: int) -> Tensor | None:
        if block.hidden is None:
            return None
        key = (reach, block.first_row)
        if key not in masks:
            shape = (block.hidden.shape[0] * group, block.hidden.shape[1])
            per_head = block.hidden.unsqueeze(1).expand(-1, group, -1).reshape(shape)
            masks[key] = torch.zeros(shape).masked_fill_(per_head, -torch.inf)
        return masks[key]

    def attended(
        block: Block, queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention
    ) -> Tensor:
        own = queries[block.first_row : block.end_row]
        keys = pick(keys, block.slots, "keys", rooms).transpose(0, 1)
        values = pick(values, block.slots, "values", rooms).transpose(0, 1)
        # [kv_heads, rows, group, dim]
        by_head = own.unflatten(1, (keys.shape[0], -1)).transpose(0, 1)
        if layer.sink_logits is None and own.dtype == torch.float32 and block.is_fused:
            mask = mask_of(block, layer.reach, by_head.shape[2])
            found = attend_fused(by_head, keys, values, mask, layer.scale)
        else:
            by_group = by_head.transpose(1, 2)
            found = attend_dense(by_group, keys, values, block.hidden, layer).transpose(1, 2)
        return found.transpose(0, 1).reshape(own.shape)

    def run(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention) -> Tensor:
        parts = [attended(block, queries, keys, values, layer) for block in blocks[layer.reach]]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts) if parts else torch.empty_like(queries)

    return run


def prepare_padded(rows: Rows, reaches: Iterable[Reach]) -> Attend:
    """Pad every request to the batch's bounds; device operations only."""
    n_rows, n_requests, bounds = rows.n_rows, rows.n_requests, rows.bounds
    device = rows.tokens.device
    start = rows.qo_indptr[:-1].long()
    lengths = rows.kv_indptr.diff().long()
    # Padding repeats a real row or column of the batch: whatever the inert slot holds, even a
    # NaN, cannot reach a real row.
    own = torch.arange(bounds.rows, device=device)
    row_idx = (start[:, None] + own).clamp(max=max(n_rows - 1, 0))  # [requests, rows]
    column = torch.arange(bounds.columns, device=device)
    column_idx = rows.kv_indptr[:-1].long()[:, None] + torch.minimum(
        column, (lengths[:, None] - 1).clamp(min=0)
    )
    slots = rows.kv_indices[column_idx.clamp(max=max(rows.kv_indices.shape[0] - 1, 0))]
    every = slots.flatten()
    place = torch.searchsorted(rows.qo_indptr[1:], torch.arange(n_rows, device=device), right=True)
    flat = place * bounds.rows + torch.arange(n_rows, device=device) - start[place]
    seen = _sees_padded(rows, row_idx, column) & (column < lengths[:, None]).unsqueeze(1)
    key_positions = rows.column_positions[column_idx][:, None, :]
    hidden = {
        reach: ~(seen & _reaches(reach, rows.positions[row_idx][..., None], key_positions))
        for reach in set(reaches)
    }

    def run(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention) -> Tensor:
        n_kv_heads = keys.shape[1]
        # [requests * kv_heads, ...], all queries of a group beside each other
        grouped = queries[row_idx].unflatten(2, (n_kv_heads, -1)).permute(0, 2, 3, 1, 4)
        picked_keys, picked_values = (
            t.index_select(0, every).unflatten(0, slots.shape).transpose(1, 2).flatten(0, 1)
            for t in (keys, values)
        )
        mask = hidden[layer.reach].repeat_interleave(n_kv_heads, dim=0).unsqueeze(1)
        out = attend_dense(grouped.flatten(0, 1), picked_keys, picked_values, mask, layer)
        by_row = out.view(n_requests, n_kv_heads, *out.shape[1:]).permute(0, 3, 1, 2, 4)
        return by_row.reshape(n_requests * bounds.rows, *queries.shape[1:])[flat]

    return run


def attend_fused(
    by_head: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Queries [n, rows, group, dim] over keys and values [n, columns, dim]; same shape back.

    `mask` [rows * group, columns] is added to the scores. All queries of a group are rows of one
    product: keys are read once.
    """
    n, n_rows, group, dim = by_head.shape
    found = functional.scaled_dot_product_attention(
        by_head.reshape(1, n, n_rows * group, dim), keys[None], values[None], mask, scale=scale
    )
    return found.view(n, n_rows, group, dim)


def attend_dense(
    queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, layer: LayerAttention
) -> Tensor:
    """Queries [n, group, rows, dim] over keys and values [n, columns, dim]; same shape back.

    n counts KV heads, times requests in a padded batch. `hidden` broadcasts against the scores
    [n, group, rows, columns]. All queries of a group are rows of one product: keys are read once.
    """
    n, group, n_rows, dim = queries.shape
    scores = _product(queries.reshape(n, group * n_rows, dim), keys.transpose(1, 2))
    scores = scores.mul_(layer.scale).view(n, group, n_rows, keys.shape[1])
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    if layer.sink_logits is not None:
        # softmax with one more logit s equals softmax scaled by e^L / (e^L + e^s),
        # L = log-sum-exp of the scores.
        n_repeats = n * group // layer.sink_logits.shape[0]  # requests of a padded batch
        sinks = layer.sink_logits.view(-1, group, 1, 1).repeat(n_repeats, 1, 1, 1)
        weights = weights * torch.sigmoid(torch.logsumexp(scores, -1, keepdim=True) - sinks)
    flat = weights.view(n, group * n_rows, keys.shape[1]).to(values.dtype)
    return torch.bmm(flat, values).view(n, group, n_rows, dim)


@dataclass(frozen=True, eq=False)
class Walk:
    """The batch's indices on the host, read once a forward."""

    qo_indptr: list[int]
    kv_indptr: list[int]
    tree_start: list[int]
    visible_prefix: NDArray[np.int32]
    positions: NDArray[np.int64]
    kv_indices: NDArray[np.int32]
    column_positions: NDArray[np.int32]
    tree_bits: NDArray[np.bool_]  # [rows, tree columns]
    masks: list[NDArray[np.bool_]]  # of the first requests: [rows, columns] each

    @classmethod
    def of(cls, rows: Rows) -> Walk:
        ends, column_ends = rows.qo_indptr.tolist(), rows.kv_indptr.tolist()
        words = np.ascontiguousarray(rows.ancestor_bits.numpy())
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        return cls(
            ends,
            column_ends,
            rows.tree_start.tolist(),
            rows.visible_prefix.numpy(),
            rows.positions.numpy(),
            rows.kv_indices.numpy(),
            rows.column_positions.numpy(),
            bits[:, : rows.bounds.tree].view(np.bool_),
            [] if rows.mask is None else rows.mask.unpack(ends, column_ends),
        )

    def seen(self, request: int, rows: slice, columns: slice) -> NDArray[np.bool_]:
        """Which of these columns of a request these rows see, before any window."""
        if request < len(self.masks):
            first = self.qo_indptr[request]
            return self.masks[request][rows.start - first : rows.stop - first, columns]
        low, high, start = columns.start, columns.stop, self.tree_start[request]
        seen: NDArray[np.bool_] = np.arange(low, high) < self.visible_prefix[rows, None]
        # The tree's columns that lie among them.
        left, right = max(start, low), min(start + self.tree_bits.shape[1], high)
        if left < right:
            seen[:, left - low : right - low] |= self.tree_bits[rows, left - start : right - start]
        return seen


def _blocks(walk: Walk, reach: Reach) -> list[Block]:
    blocks = []
    for request, end in enumerate(walk.qo_indptr[1:]):
        for first in range(walk.qo_indptr[request], end, BLOCK_ROWS):
            blocks.append(_block(walk, reach, request, (first, min(end, first + BLOCK_ROWS))))
    return blocks


def _block(walk: Walk, reach: Reach, request: int, span: tuple[int, int]) -> Block:
    """Find the columns the block needs, and the mask only if some row misses one of them."""
    first, end = span
    base, n_columns = walk.kv_indptr[request], walk.kv_indptr[request + 1] - walk.kv_indptr[request]
    prefixes, positions = walk.visible_prefix[first:end], walk.positions[first:end]
    low, high = 0, n_columns if walk.tree_bits.shape[1] else min(n_columns, int(prefixes.max()))
    if reach.window is not None and reach.n_sink_tokens == 0:
        # Inside a visible prefix a column's position is its index, so a window cuts it there.
        oldest = int(positions.min()) - reach.window + 1
        low = max(0, min(oldest, int(prefixes.min())))
    slots = find_slots(walk.kv_indices[base + low : base + high])
    seen = walk.seen(request, slice(first, end), slice(low, high))
    if reach.window is not None:
        key_positions = walk.column_positions[base + low : base + high]
        near = key_positions > positions[:, None] - reach.window
        seen = seen & (near | (key_positions < reach.n_sink_tokens))
    hidden = None if seen.all() else torch.from_numpy(~seen)
    return Block(first, end, slots, hidden)


def _sees_padded(rows: Rows, row_idx: Tensor, column: Tensor) -> Tensor:
    """[requests, rows, columns] bool, before window and length."""
    seen = column < rows.visible_prefix[row_idx][..., None]
    if rows.bounds.tree:
        bits = _unpack(rows.ancestor_bits, rows.bounds.tree)[row_idx]
        offset = (column - rows.tree_start[:, None])[:, None, :].expand(seen.shape)
        seen = seen | _tree_columns(bits, offset)
    return seen


def _tree_columns(bits: Tensor, offset: Tensor) -> Tensor:
    """Spread bits [..., rows, tree] over columns: bit `offset`, false outside the tree."""
    n_tree = bits.shape[-1]
    inside = (offset >= 0) & (offset < n_tree)
    picked = offset.clamp(0, n_tree - 1).long().expand(*bits.shape[:-1], offset.shape[-1])
    return bits.gather(-1, picked) & inside


def _unpack(words: Tensor, n_bits: int) -> Tensor:
    """[rows, words] i32 to [rows, n_bits] bool; arithmetic shift is fine under `& 1`."""
    bit = torch.arange(n_bits, device=words.device)
    shifted = words[:, bit // BITS_PER_WORD] >> (bit % BITS_PER_WORD).int()
    return (shifted & 1).bool()


def _reaches(reach: Reach, position: Tensor, key_position: Tensor) -> Tensor:
    """Whether a key lies within a row's reach, by position."""
    if reach.window is None:
        return torch.ones((), dtype=torch.bool, device=position.device)
    near = key_position > position - reach.window
    return near | (key_position < reach.n_sink_tokens)


def _product(queries: Tensor, keys: Tensor) -> Tensor:
    """Scores in float32: a bf16 product would round them to three digits before softmax."""
    if queries.dtype == torch.float32:
        return torch.bmm(queries, keys)
    if not queries.is_cuda:
        return torch.bmm(queries.float(), keys.float())
    return torch.bmm(queries, keys, out_dtype=torch.float32)
