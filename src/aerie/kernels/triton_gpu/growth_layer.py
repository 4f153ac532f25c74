"""A whole draft layer in one launch: K1, K2 and K3 of every request, for the engine's round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.device import at_rank, rank_descending
from aerie.kernels.triton_gpu.growth import (
    HIDDEN_BLOCK,
    WIDEST,
    candidate_block,
    gather_hidden,
)
from aerie.kernels.triton_gpu.growth_device import (
    check_frontier,
    check_siblings,
    gains_of,
    merge_scores,
    path_scores,
    store_nodes,
    write_gains,
    write_mask,
)
from aerie.kernels.triton_gpu.launch import MAX_BATCH, as_bytes, block, row_stride

_SIZES = (
    "batch", "width", "top_k", "columns", "count", "n_old", "n_new", "n_free", "fed_count",
    "s0", "s1", "s2", "s3", "s4", "s5", "sort_stride",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class NodeStore:
    """The arrays K2 writes in place, by the names of its card."""

    cumu_tokens: Tensor  # [B, N] i64
    cumu_scores: Tensor  # [B, N] f32
    cumu_deltas: Tensor  # [B, N] i64
    prev_indexs: Tensor  # [B, N] i64
    next_indexs: Tensor  # [B, N] i64
    side_indexs: Tensor  # [B, N] i64
    sort_scores: Tensor  # [B, M] f32


@dataclass(frozen=True, eq=False)
class Frontier:
    """What a layer is grown from: the nodes being expanded and their children."""

    topk_probas: Tensor  # [B, W*K] f32
    topk_tokens: Tensor  # [B, W*K] i64, target ids
    last_layer_scores: Tensor  # [B, W] f32
    input_hidden: Tensor  # [B*W, H]
    frontier_indexs: Tensor  # [B, W] i64
    input_tree_mask: Tensor  # [B, W, F] bool


@dataclass(frozen=True)
class LayerCounts:
    """Host-side numbers of a layer: nodes stored and fed before it, and the verifier's bound."""

    cumu_count: int
    fed_count: int
    verify_num: int


@dataclass(frozen=True, eq=False)
class GrownLayer:
    """The next frontier and the layer's gain."""

    ids: Tensor  # [B, K] i64, node ids
    scores: Tensor  # [B, K] f32, path scores
    tokens: Tensor  # [B, K] i64
    hidden: Tensor  # [B, K, H]
    mask: Tensor  # [B, K, F] bool
    gains: Tensor  # [K+1] f32, K3's G
    status: Tensor  # [B] i32


@dataclass(frozen=True, eq=False)
class LayerScratch:
    """Memory between the programs of one launch; the counter must be 0 before and is after."""

    increments: Tensor  # [128, 16] f64
    arrived: Tensor  # [1] i32


def layer_scratch(device: torch.device) -> LayerScratch:
    """Scratch for one stream of launches."""
    return LayerScratch(
        torch.zeros(MAX_BATCH, WIDEST, dtype=torch.float64, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
    )


@triton.jit(do_not_specialize=_SIZES)
def _layer_kernel(
    tokens_at, scores_at, depths_at, prev_at, next_at, side_at, s0, s1, s2, s3, s4, s5,
    sort_scores, sort_stride, probas, tokens, last_scores, hidden, frontier, mask_in,
    ids_out, scores_out, tokens_out, hidden_out, mask_out, gains_out, status_out, increments,
    arrived, batch, width, top_k, size, columns, count, n_old, n_new, n_free, fed_count,
    GAINS: tl.constexpr, C: tl.constexpr, W: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    F: tl.constexpr, H: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One request; part 0 stores the layer, every part gathers its columns of the hidden rows."""
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    here = tl.arange(0, C)
    n_candidates = width * top_k
    is_entry = here < n_candidates
    found = tl.load(tokens + request * n_candidates + here, mask=is_entry, other=0)
    status = tl.zeros([], tl.int32)
    detail = tl.zeros([], tl.int64)
    status, detail = check_frontier(status, detail, frontier, request, width, count, W)
    status, detail = check_siblings(status, detail, found, here // top_k, is_entry, C)
    is_ok = status == 0
    curr = path_scores(probas, last_scores, request, width, top_k, C)
    rank = rank_descending(curr, is_entry, C)
    chosen = at_rank(here, rank, is_entry, K)
    parent_slot = chosen // top_k
    if part == 0:
        child = tl.arange(0, K)
        is_child = child < top_k
        stores = (tokens_at, scores_at, depths_at, prev_at, next_at, side_at)
        strides = (s0, s1, s2, s3, s4, s5)
        store_nodes(
            stores, strides, request, is_ok, curr, found, frontier, width, top_k, count, False, C, W
        )
        best = at_rank(curr, rank, is_entry, K)
        best_tokens = tl.where(is_ok, at_rank(found, rank, is_entry, K), -1)
        out = request * top_k + child
        tl.store(ids_out + out, tl.where(is_ok, count + chosen, 0).to(tl.int64), mask=is_child)
        tl.store(scores_out + out, tl.where(is_ok, best, 0.0), mask=is_child)
        tl.store(tokens_out + out, best_tokens, mask=is_child)
        tl.store(status_out + request, status)
        if GAINS:
            # Before the old order is overwritten below.
            old_row = sort_scores + request * sort_stride
            gained = gains_of(old_row, best, child, n_old, top_k, n_free, is_ok)
            tl.store(increments + request * K + child, gained)
        merge_scores(
            sort_scores, sort_stride, sort_scores, request, is_ok, curr, rank, is_entry, best,
            top_k, n_old, n_new, K, M, False,
        )  # fmt: skip
        write_mask(
            mask_in, mask_out, request, is_ok, parent_slot, width, top_k, columns, fed_count, K, F
        )
        if GAINS:
            # The last request to arrive adds all up, always in the same order.
            tl.debug_barrier()
            if tl.atomic_add(arrived, 1, sem="acq_rel") == batch - 1:
                other = tl.arange(0, B)[:, None]
                # Written by other multiprocessors: not from this one's own cache.
                every = tl.load(
                    increments + other * K + child[None, :], mask=other < batch, other=0.0,
                    cache_modifier=".cg",
                )  # fmt: skip
                write_gains(every, gains_out, batch, top_k, K)
                tl.store(arrived, 0)
    gather_hidden(hidden, hidden_out, request, part, is_ok, parent_slot, width, top_k, size, K, H)


def grow_layer(
    store: NodeStore, frontier: Frontier, counts: LayerCounts, scratch: LayerScratch | None
) -> GrownLayer:
    """Score, sort, store, link, mask and weigh one layer: what K1, K2 and K3 do one by one.

    Without `scratch` the layer is not weighed, and `gains` stays unwritten.
    Writes `store` in place; a refused request (its status says why) leaves it as it was, and its
    part of the next frontier points at the root with score 0. Bounds are the cards', checked by
    whoever sizes the buffers; launches on one stream may share `scratch`.
    """
    batch, width = frontier.last_layer_scores.shape
    candidates = frontier.topk_probas.shape[1]
    top_k = candidates // width
    hidden, columns = frontier.input_hidden, frontier.input_tree_mask.shape[2]
    n_old = min(counts.verify_num, counts.cumu_count)
    n_new = min(counts.verify_num, counts.cumu_count + candidates)
    n_free = min(counts.verify_num - n_old, top_k)
    device, best = hidden.device, (batch, top_k)
    made = GrownLayer(
        ids=torch.empty(best, dtype=torch.int64, device=device),
        scores=torch.empty(best, device=device),
        tokens=torch.empty(best, dtype=torch.int64, device=device),
        hidden=hidden.new_empty((*best, hidden.shape[1])),
        mask=torch.empty((*best, columns), dtype=torch.bool, device=device),
        gains=torch.empty(top_k + 1, device=device),
        status=torch.empty(batch, dtype=torch.int32, device=device),
    )
    if batch == 0:
        made.gains.zero_()
        return made
    increments, arrived = made.gains, made.status
    if scratch is not None:
        increments, arrived = scratch.increments, scratch.arrived
    stores = (
        store.cumu_tokens, store.cumu_scores, store.cumu_deltas,
        store.prev_indexs, store.next_indexs, store.side_indexs,
    )  # fmt: skip
    _layer_kernel[(batch, max(1, triton.cdiv(hidden.shape[1], HIDDEN_BLOCK)))](
        *stores, *(row_stride(array) for array in stores),
        store.sort_scores, row_stride(store.sort_scores),
        frontier.topk_probas.contiguous(), frontier.topk_tokens.contiguous(),
        frontier.last_layer_scores.contiguous(), hidden.contiguous(),
        frontier.frontier_indexs.contiguous(), as_bytes(frontier.input_tree_mask),
        made.ids, made.scores, made.tokens, made.hidden, as_bytes(made.mask), made.gains,
        made.status, increments, arrived, batch, width, top_k, hidden.shape[1],
        columns, counts.cumu_count, n_old, n_new, n_free, counts.fed_count,
        GAINS=scratch is not None, C=candidate_block(candidates), W=WIDEST, K=WIDEST,
        M=block(n_old, 16), F=block(columns, 64), H=HIDDEN_BLOCK, B=block(batch, 8),
    )  # fmt: skip
    return made
