"""Triton R20, R21 and R23: what the blocks of a text are worth, and copies of the chosen ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards import partial_kv
from aerie.kernels.cards.partial_kv import (
    BoundedBlocks,
    GatheredBlocks,
    ScoredBlocks,
    WeighedBlocks,
)
from aerie.kernels.triton_gpu.launch import block, contiguous

# Blocks that one program looks at: enough to hide its queries' load, few enough to fill a GPU.
BLOCKS_EACH = 8
BEHIND = tl.constexpr(partial_kv.BEHIND)
_SIZES = ("batch", "n_kv", "n_blocks", "layer_stride", "slot_stride", "width")


@triton.jit
def _of_program(rows, seq_len, n_kv, batch):
    """Layer, request and KV head of a program, its table row and the length of its text."""
    item = tl.program_id(0)
    head = item % n_kv
    request = (item // n_kv) % batch
    layer = (item // n_kv // batch).to(tl.int64)
    return layer, request, head, tl.load(rows + request), tl.load(seq_len + request)


@triton.jit
def _keys(
    keys, table, table_row, first, length, width, layer, head, layer_stride, slot_stride,
    own, dim, SIZE: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Keys of one block [positions, dim] as float32, and which positions are of the text."""
    position = first + own
    is_real = (own < SIZE) & (position < length)
    slot = tl.load(table + table_row * width + position, mask=is_real, other=0).to(tl.int64)
    where = layer * layer_stride + slot[:, None] * slot_stride + head * DIM + dim[None, :]
    seen = is_real[:, None] & (dim < DIM)[None, :]
    return tl.load(keys + where, mask=seen, other=0.0).to(tl.float32), is_real


@triton.jit(do_not_specialize=_SIZES)
def _score_kernel(
    queries, keys, table, rows, seq_len, out, batch, n_kv, n_blocks, layer_stride, slot_stride,
    width, IS_MASS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
    G: tl.constexpr, D: tl.constexpr, S: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Some blocks of one layer, request and KV head.

    For R20 the log of the summed exponentials of each query head, which the caller turns into
    masses; for R21 the bound itself.
    """
    layer, _, head, table_row, length = _of_program(rows, seq_len, n_kv, batch)
    group, dim, own = tl.arange(0, G), tl.arange(0, D), tl.arange(0, S)
    item = tl.program_id(0).to(tl.int64)
    is_query = (group < GROUP)[:, None] & (dim < DIM)[None, :]
    where = (item * GROUP + group[:, None]) * DIM + dim[None, :]
    query = tl.load(queries + where, mask=is_query, other=0.0).to(tl.float32)
    for step in range(EACH):
        number = tl.program_id(1) * EACH + step
        key, is_real = _keys(
            keys, table, table_row, number * SIZE, length, width, layer, head, layer_stride,
            slot_stride, own, dim, SIZE, DIM,
        )  # fmt: skip
        if IS_MASS:
            score = tl.sum(query[:, None, :] * key[None, :, :], axis=2)
            score = tl.where(is_real[None, :], score, float("-inf"))
            peak = tl.max(score, axis=1)
            # A block behind the text has no peak: what is subtracted from it must be a number.
            base = tl.where(peak > float("-inf"), peak, 0.0)
            total = tl.sum(tl.exp(score - base[:, None]), axis=1)
            total = tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)) + base, peak)
            place = (item * GROUP + group) * n_blocks + number
            tl.store(out + place, total, mask=(group < GROUP) & (number < n_blocks))
        else:
            # Behind the text any number will do: infinity times 0 is none.
            is_text = number * SIZE < length
            high = tl.max(tl.where(is_real[:, None], key, BEHIND), axis=0)
            low = tl.min(tl.where(is_real[:, None], key, -BEHIND), axis=0)
            is_dim = (dim < DIM)[None, :] & is_text
            above = tl.sum(tl.where(is_dim, query * high[None, :], 0.0), axis=1)
            below = tl.sum(tl.where(is_dim, query * low[None, :], 0.0), axis=1)
            bound = tl.sum(tl.where(group < GROUP, tl.maximum(above, below), 0.0), axis=0) / GROUP
            bound = tl.where(is_text, bound, BEHIND)
            tl.store(out + item * n_blocks + number, bound, mask=number < n_blocks)


def _scored(call: ScoredBlocks, is_mass: bool) -> Tensor:
    queries, keys, n_blocks = call.queries, call.keys, call.n_blocks
    (n_layers, batch, n_heads, dim), n_kv = queries.shape, keys.shape[2]
    group = n_heads // n_kv
    shape = (n_layers, batch, n_kv, *((group,) if is_mass else ()), n_blocks)
    out = torch.empty(shape, dtype=torch.float32, device=queries.device)
    if out.numel():
        each = min(BLOCKS_EACH, block(n_blocks))
        grid = (n_layers * batch * n_kv, triton.cdiv(n_blocks, each))
        _score_kernel[grid](
            queries.contiguous(), keys,
            *contiguous(call.req_to_token, call.req_pool_indices, call.seq_len), out, batch, n_kv,
            n_blocks, *keys.stride()[:2], call.req_to_token.shape[1], IS_MASS=is_mass,
            GROUP=group, DIM=dim, SIZE=call.block_size, G=block(group), D=block(dim),
            S=block(call.block_size), EACH=each,
        )  # fmt: skip
    return out


@takes_call
def weigh_kv_blocks(call: WeighedBlocks) -> dict[str, Tensor]:
    """R20: softmax of every query head, summed by block."""
    parts = _scored(call, is_mass=True)
    if not parts.numel():
        return {"block_scores": parts.sum(dim=3)}
    # A text without tokens has no mass, and softmax of nothing is not a number.
    return {"block_scores": torch.softmax(parts, dim=-1).nan_to_num(0.0).sum(dim=3)}


@takes_call
def bound_kv_blocks(call: BoundedBlocks) -> dict[str, Tensor]:
    """R21: a query's products with the extremes of every block."""
    return {"block_scores": _scored(call, is_mass=False)}


@triton.jit(do_not_specialize=("batch", "n_kv", "n_chosen", "width", "near_width"))
def _gather_kernel(
    near_keys, near_values, keys, values, blocks, table, rows, seq_len, near_table, batch, n_kv,
    n_chosen, layer_stride, slot_stride, near_layer_stride, near_slot_stride, width, near_width,
    DIM: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One chosen block of one layer, request and KV head, keys and values."""
    layer, request, head, table_row, length = _of_program(rows, seq_len, n_kv, batch)
    place, own, dim = tl.program_id(1), tl.arange(0, S), tl.arange(0, D)
    number = tl.load(blocks + tl.program_id(0).to(tl.int64) * n_chosen + place)
    position = number * SIZE + own
    is_real = (number >= 0) & (own < SIZE) & (position < length)
    slot = tl.load(table + table_row * width + position, mask=is_real, other=0).to(tl.int64)
    column = request * near_width + place * SIZE + own
    near = tl.load(near_table + column, mask=is_real, other=0).to(tl.int64)
    source = layer * layer_stride + slot[:, None] * slot_stride + head * DIM + dim[None, :]
    target = layer * near_layer_stride + near[:, None] * near_slot_stride + head * DIM
    target += dim[None, :]
    mask = is_real[:, None] & (dim < DIM)[None, :]
    tl.store(near_keys + target, tl.load(keys + source, mask=mask), mask=mask)
    tl.store(near_values + target, tl.load(values + source, mask=mask), mask=mask)


@takes_call
def gather_kv_blocks(call: GatheredBlocks) -> dict[str, Tensor]:
    """R23: every chosen block into the slots listed for it."""
    (n_layers, batch, n_kv, n_chosen), dim = call.blocks.shape, call.keys.shape[3]
    if n_layers * batch:
        _gather_kernel[(n_layers * batch * n_kv, n_chosen)](
            call.near_keys, call.near_values, call.keys, call.values,
            *contiguous(call.blocks, call.req_to_token), call.req_pool_indices, call.seq_len,
            call.near_table.contiguous(), batch, n_kv, n_chosen, *call.keys.stride()[:2],
            *call.near_keys.stride()[:2], call.req_to_token.shape[1], call.near_table.shape[1],
            DIM=dim, SIZE=call.block_size, D=block(dim), S=block(call.block_size),
        )  # fmt: skip
    return {}
