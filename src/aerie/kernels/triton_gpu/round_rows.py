"""Rows of a captured round in one launch each: where they stand, read and write.

The definitions are `attention/bucket_rows.py` and `speculation/round_ops.py`; entries nobody may
read (columns behind the last list) can differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.launch import MAX_BATCH, block

BLOCK = 256
MASK_WORDS = 4
ROUNDS = 8  # bisect 128 requests and the place behind them


@triton.jit
def owner_in(indptr, entry, batch, ROUNDS: tl.constexpr):
    """Request of every entry of a ragged list, by bisection; `batch` past the last. [E]"""
    low = tl.zeros_like(entry)
    high = tl.zeros_like(entry) + batch
    for _ in range(ROUNDS):
        middle = (low + high) // 2
        is_before = (low < high) & (tl.load(indptr + middle + 1, mask=low < high, other=0) <= entry)
        low = tl.where(is_before, middle + 1, low)
        high = tl.where(is_before, high, tl.minimum(high, middle))
    return low


@triton.jit(do_not_specialize=("batch", "n_rows", "capacity"))
def _verify_kernel(
    tokens, positions, qo, kv, slots, seq_len, tokens_out, kv_slots_out, visible_out, qo_out,
    kv_out, positions_out, start_out, batch, n_rows, capacity,
    ROUNDS: tl.constexpr, E: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One block of rows and the same block of columns; the first program writes the offsets."""
    program = tl.program_id(0)
    entry = program * E + tl.arange(0, E)
    is_row = entry < n_rows
    owner = owner_in(qo, entry, batch, ROUNDS)
    is_real = is_row & (owner < batch)
    length = tl.load(seq_len + owner, mask=is_real, other=1)
    first = tl.load(qo + owner, mask=is_real, other=0)
    column = tl.load(kv + owner, mask=is_real, other=0) + length.to(tl.int32) + entry - first
    slot = tl.load(slots + column, mask=is_real & (column < capacity), other=0)
    tl.store(kv_slots_out + entry, slot.to(tl.int64), mask=is_row)
    # The inert request has one column, and its rows see it.
    tl.store(visible_out + entry, length.to(tl.int32), mask=is_row)
    token = tl.load(tokens + entry, mask=is_row, other=0)
    tl.store(tokens_out + entry, tl.maximum(token, 0), mask=is_row)

    is_column = entry < capacity
    owner = owner_in(kv, entry, batch, ROUNDS)
    is_used = is_column & (owner < batch)
    length = tl.load(seq_len + owner, mask=is_used, other=0).to(tl.int32)
    index = entry - tl.load(kv + owner, mask=is_used, other=0)
    node = index - length
    row = tl.load(qo + owner, mask=is_used, other=0) + node
    is_node = is_used & (node >= 0) & (row < n_rows)
    stands = tl.load(positions + row, mask=is_node, other=0).to(tl.int32)
    tl.store(positions_out + entry, tl.where(node >= 0, stands, index), mask=is_column)
    tl.store(slots + entry, 0, mask=is_column & (owner >= batch))
    if program == 0:
        lane = tl.arange(0, B)
        is_lane = lane <= batch
        bound = tl.load(qo + lane, mask=is_lane, other=0)
        tl.store(qo_out + lane, tl.where(is_lane, bound, n_rows), mask=lane <= batch + 1)
        last = tl.load(kv + batch)
        bound = tl.load(kv + lane, mask=is_lane, other=0)
        tl.store(kv_out + lane, tl.where(is_lane, bound, last + 1), mask=lane <= batch + 1)
        start = tl.load(seq_len + lane, mask=lane < batch, other=0)
        tl.store(start_out + lane, start.to(tl.int32), mask=is_lane)


def verify_arrays(
    tokens: Tensor,
    positions: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    seq_len: Tensor,
) -> dict[str, Tensor]:
    """Arrays of `Rows` by name; `kv_indices` is written in place behind its last list."""
    n_rows, capacity, batch = tokens.shape[0], kv_indices.shape[0], seq_len.shape[0]
    device = tokens.device

    def integers(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    outputs = {
        "tokens": torch.empty_like(tokens),
        "kv_slots": torch.empty(n_rows, dtype=torch.int64, device=device),
        "visible_prefix": integers(n_rows),
        "qo_indptr": integers(batch + 2),
        "kv_indptr": integers(batch + 2),
        "column_positions": integers(capacity),
        "tree_start": integers(batch + 1),
    }
    _verify_kernel[(triton.cdiv(max(n_rows, capacity), BLOCK),)](
        tokens, positions, qo_indptr, kv_indptr, kv_indices, seq_len, *outputs.values(),
        batch, n_rows, capacity, ROUNDS=ROUNDS, E=BLOCK, B=2 * MAX_BATCH,
    )  # fmt: skip
    return {**outputs, "kv_indices": kv_indices}


@triton.jit(do_not_specialize=("batch", "n_rows", "n_fed", "capacity", "width"))
def _draft_kernel(
    seq_len, count, table, table_row, kv, slots, levels, ends, positions_out, kv_slots_out,
    visible_out, last_out, fed_positions_out, fed_slots_out, fed_visible_out, columns_out,
    start_out, batch, n_rows, n_fed, capacity, width,
    ROUNDS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """One block of accepted rows, of fed nodes and of columns."""
    entry = tl.program_id(0) * E + tl.arange(0, E)
    request = entry // n_rows
    is_row = request < batch
    own = entry - request * n_rows
    length = tl.load(seq_len + request, mask=is_row, other=0)
    kept = tl.load(count + request, mask=is_row, other=0)
    row = tl.load(table_row + request, mask=is_row, other=0)
    is_real = is_row & (own < kept)
    position = tl.maximum(length - kept + tl.minimum(own, kept - 1), 0)
    slot = tl.load(table + row * width + tl.minimum(position, width - 1), mask=is_real, other=0)
    tl.store(positions_out + entry, position, mask=is_row)
    tl.store(kv_slots_out + entry, slot.to(tl.int64), mask=is_row)
    tl.store(visible_out + entry, (position + 1).to(tl.int32), mask=is_row)
    last = request.to(tl.int64) * n_rows + tl.maximum(kept - 1, 0)
    is_first = is_row & (own == 0)
    tl.store(last_out + request, last, mask=is_first)
    tl.store(start_out + request, length.to(tl.int32), mask=is_first)

    # Nodes of a level lie together, request after request: level d begins at batch * before[d].
    if n_fed > 0:
        request = entry // n_fed
        is_fed = request < batch
        node = entry - request * n_fed
        level = tl.load(levels + node, mask=is_fed, other=0)
        before = tl.load(ends + level, mask=is_fed, other=0)
        wide = tl.load(ends + level + 1, mask=is_fed, other=0) - before
        out = batch * before + request * wide + node - before
        length = tl.load(seq_len + request, mask=is_fed, other=0)
        row = tl.load(table_row + request, mask=is_fed, other=0)
        place = tl.minimum(length + node, width - 1)
        slot = tl.load(table + row * width + place, mask=is_fed, other=0)
        tl.store(fed_positions_out + out, length + level, mask=is_fed)
        tl.store(fed_slots_out + out, slot.to(tl.int64), mask=is_fed)
        tl.store(fed_visible_out + out, length.to(tl.int32), mask=is_fed)

    is_column = entry < capacity
    owner = owner_in(kv, entry, batch, ROUNDS)
    is_used = is_column & (owner < batch)
    index = entry - tl.load(kv + owner, mask=is_used, other=0)
    length = tl.load(seq_len + owner, mask=is_used, other=0).to(tl.int32)
    node = index - length
    is_node = is_used & (node >= 0) & (node < n_fed)
    level = tl.load(levels + node, mask=is_node, other=0).to(tl.int32)
    tl.store(columns_out + entry, tl.where(is_node, length + level, index), mask=is_column)
    tl.store(slots + entry, 0, mask=is_column & (owner >= batch))


@dataclass(frozen=True, eq=False)
class LevelPlace:
    """Where the rows of one draft level stand, read and write."""

    positions: Tensor  # [B * W] i64
    kv_slots: Tensor  # [B * W] i64
    visible_prefix: Tensor  # [B * W] i32


@dataclass(frozen=True, eq=False)
class DraftPlaces:
    """As `speculation/round_ops.py` defines it."""

    positions: Tensor
    kv_slots: Tensor
    visible_prefix: Tensor
    last: Tensor
    levels: tuple[LevelPlace, ...]
    column_positions: Tensor
    kv_indices: Tensor
    tree_start: Tensor


def draft_places(
    seq_len: Tensor,
    accepted: tuple[Tensor, int],
    place: tuple[Tensor, Tensor],
    lists: tuple[Tensor, Tensor],
    levels: tuple[Tensor, Tensor],
    widths: tuple[int, ...],
) -> DraftPlaces:
    """Rows to take in, nodes to feed, columns; `lists[1]` is written behind its last list.

    `levels`: level of each fed node [fed] i64, and nodes before each level [depth] i64.
    """
    (count, n_rows), (table, table_row), (kv_indptr, kv_indices) = accepted, place, lists
    batch, device = seq_len.shape[0], seq_len.device
    capacity, n_fed = kv_indices.shape[0], sum(widths)

    def room(size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    rows = [room(batch * n_rows, kind) for kind in (torch.int64, torch.int64, torch.int32)]
    fed = [room(batch * n_fed, kind) for kind in (torch.int64, torch.int64, torch.int32)]
    last, start = room(batch, torch.int64), room(batch, torch.int32)
    columns = room(capacity, torch.int32)
    size = max(capacity, batch * n_rows, batch * n_fed)
    _draft_kernel[(triton.cdiv(size, BLOCK),)](
        seq_len, count, table, table_row, kv_indptr, kv_indices, *levels, *rows, last, *fed,
        columns, start, batch, n_rows, n_fed, capacity, table.shape[1],
        ROUNDS=ROUNDS, E=BLOCK,
    )  # fmt: skip
    split = [part.split([batch * wide for wide in widths]) for part in fed] if widths else []
    places = tuple(LevelPlace(*parts) for parts in zip(*split, strict=True))
    return DraftPlaces(
        positions=rows[0],
        kv_slots=rows[1],
        visible_prefix=rows[2],
        last=last,
        levels=places,
        column_positions=columns,
        kv_indices=kv_indices,
        tree_start=start,
    )


@triton.jit(do_not_specialize=("n", "n_before", "first_id", "top_k", "fed"))
def _bits_kernel(
    bits, ids, bits_out, ids_stride, n, n_before, first_id, top_k, fed, W: tl.constexpr
):
    """The nodes of one request: their parents' bits and their own."""
    request = tl.program_id(0)
    node = tl.arange(0, W)
    word = tl.arange(0, 4)
    is_node = node < n
    own_id = tl.load(ids + request * ids_stride + node, mask=is_node, other=0)
    slot = tl.maximum((own_id - first_id) // top_k, 0)
    parent = bits + (request * n_before + slot)[:, None] * 4 + word[None, :]
    seen = tl.load(parent, mask=is_node[:, None], other=0)
    column = fed + node
    bit = tl.where((column // 32)[:, None] == word[None, :], (1 << (column % 32))[:, None], 0)
    out = bits_out + (request * n + node)[:, None] * 4 + word[None, :]
    tl.store(out, seen | bit, mask=is_node[:, None])


def next_bits(bits: Tensor, ids: Tensor, children: tuple[int, int], fed: int) -> Tensor:
    """What the nodes about to be fed see of the nodes fed so far, themselves included."""
    batch, n = ids.shape
    made = torch.empty((batch, n, MASK_WORDS), dtype=torch.int32, device=bits.device)
    if batch:
        _bits_kernel[(batch,)](
            bits, ids, made, ids.stride(0), n, bits.shape[1], *children, fed, W=block(n, 16)
        )
    return made
