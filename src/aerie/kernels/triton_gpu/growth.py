"""Triton drafting kernels K1 to K3, one launch each; `growth_layer.py` has all three in one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.growth import CumulativeState, DraftLayer, LayerScores, WorkDeltas
from aerie.kernels.triton_gpu.device import CANDIDATE, at_rank, first_where, rank_descending, refuse
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
from aerie.kernels.triton_gpu.launch import (
    as_bytes,
    block,
    contiguous,
    packed,
    row_stride,
    words,
    write_back,
)

# One variant for every layer's sizes: a value of 1 or a multiple of 16 would compile another one.
_SIZES = ("width", "top_k", "count", "columns", "n_old", "n_new", "fed_count")
_STRIDES = ("s0", "s1", "s2", "s3", "s4", "s5", "sort_stride")
# Vectors are sized for the bounds of the cards, but for the candidates, whose number is squared.
WIDEST = 16
LONGEST = 128

# Columns of the hidden rows one program gathers: K rows of 512 halves are 8 KB of loads.
HIDDEN_BLOCK = 512


@triton.jit
def gather_hidden(
    hidden, hidden_out, request, part, is_ok, parent_slot, width, top_k, size, K: tl.constexpr,
    H: tl.constexpr,
):  # fmt: skip
    """Columns [part * H, ...) of the chosen children's parent rows."""
    child = tl.arange(0, K)
    column = part * H + tl.arange(0, H)
    is_inside = (child < top_k)[:, None] & (column < size)[None, :]
    source = hidden + (request * width + parent_slot)[:, None] * size + column[None, :]
    rows = tl.load(source, mask=is_inside & is_ok, other=0.0)
    target = hidden_out + (request * top_k + child)[:, None] * size + column[None, :]
    tl.store(target, rows, mask=is_inside)


@triton.jit(do_not_specialize=("width", "top_k", "count"))
def _score_kernel(
    probas, tokens, last_scores, hidden, curr_out, sorted_out, order_out, best_out, parents_out,
    hidden_out, tokens_out, status_out, detail_out, width, top_k, size, count,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """K1 of one request; part 0 writes the scores, every part gathers its columns."""
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    here = tl.arange(0, C)
    n_candidates = width * top_k
    is_entry = here < n_candidates
    curr = path_scores(probas, last_scores, request, width, top_k, C)
    rank = rank_descending(curr, is_entry, C)
    chosen = at_rank(here, rank, is_entry, K)
    parent_slot = chosen // top_k
    if part == 0:
        row = request * n_candidates
        found = tl.load(tokens + row + here, mask=is_entry, other=0)
        tl.store(curr_out + row + here, curr, mask=is_entry)
        tl.store(sorted_out + row + rank, curr, mask=is_entry)
        tl.store(order_out + row + rank, here.to(tl.int64), mask=is_entry)
        tl.store(tokens_out + row + here, found, mask=is_entry)
        child = tl.arange(0, K)
        best = request * top_k + child
        tl.store(best_out + best, (count + chosen).to(tl.int64), mask=child < top_k)
        tl.store(parents_out + best, parent_slot.to(tl.int64), mask=child < top_k)
        tl.store(status_out + request, 0)
        tl.store(detail_out + request, 0)
    gather_hidden(hidden, hidden_out, request, part, True, parent_slot, width, top_k, size, K, H)


@takes_call
def draft_tree_layer_score_index_gen_op(call: LayerScores) -> dict[str, Tensor]:
    """K1: path scores of a layer, sorted; the best K with parents, hidden rows and node ids."""
    batch, width = call.last_layer_scores.shape
    candidates = call.topk_probas.shape[1]
    top_k, size = candidates // width, call.input_hidden.shape[1]
    outputs = layer_outputs(call.topk_probas, call.topk_tokens, call.input_hidden, (batch, top_k))
    if batch:
        grid = (batch, max(1, triton.cdiv(size, HIDDEN_BLOCK)))
        _score_kernel[grid](
            *contiguous(call.topk_probas, call.topk_tokens, call.last_layer_scores),
            call.input_hidden.contiguous(), *outputs.values(), width, top_k, size, call.cumu_count,
            C=candidate_block(candidates), K=WIDEST, H=HIDDEN_BLOCK,
        )  # fmt: skip
    return outputs


def candidate_block(candidates: int) -> int:
    """Three sizes for the candidates of a layer: first layers, the default of 8 x 8, the bound."""
    return next(size for size in (16, 64, 128) if candidates <= size)


def layer_outputs(
    probas: Tensor, tokens: Tensor, hidden: Tensor, best: tuple[int, int]
) -> dict[str, Tensor]:
    """Room for what K1 returns, in the order of its card."""

    def nodes(shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=probas.device)

    return {
        "curr_layer_scores": torch.empty_like(probas, memory_format=torch.contiguous_format),
        "sort_layer_scores": torch.empty_like(probas, memory_format=torch.contiguous_format),
        "sort_layer_indices": nodes(probas.shape),
        "cache_topk_indices": nodes(best),
        "parent_indices_in_layer": nodes(best),
        "output_hidden": hidden.new_empty((*best, hidden.shape[1])),
        "mapped_tokens": torch.empty_like(tokens, memory_format=torch.contiguous_format),
        **words(best[0], probas.device),
    }


@triton.jit(do_not_specialize=("width", "top_k", "count"))
def _check_kernel(
    tokens, order, frontier, status_out, detail_out, width, top_k, count,
    C: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """K2's refusals of one request, in the card's order."""
    request = tl.program_id(0).to(tl.int64)
    here = tl.arange(0, C)
    n_candidates = width * top_k
    is_entry = here < n_candidates
    status = tl.zeros([], tl.int32)
    detail = tl.zeros([], tl.int64)
    status, detail = check_frontier(status, detail, frontier, request, width, count, W)
    entry = tl.load(order + request * n_candidates + here, mask=is_entry, other=0)
    is_foreign = is_entry & ((entry < 0) | (entry >= n_candidates))
    is_any, foreign = first_where(is_foreign, entry, C)
    status, detail = refuse(status, detail, CANDIDATE, is_any, foreign)
    found = tl.load(tokens + request * n_candidates + here, mask=is_entry, other=0)
    status, detail = check_siblings(status, detail, found, here // top_k, is_entry, C)
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)


@takes_call
def check_update_cumu_draft_state(call: CumulativeState) -> dict[str, Tensor]:
    """K2, before anything is written: frontier ids and sort indices exist, siblings differ."""
    batch, width = call.frontier_indexs.shape
    candidates = call.topk_tokens.shape[1]
    found = words(batch, call.topk_tokens.device)
    if batch:
        _check_kernel[(batch,)](
            *contiguous(call.topk_tokens, call.sort_layer_indices, call.frontier_indexs),
            *found.values(), width, candidates // width, call.cumu_count,
            C=candidate_block(candidates), W=WIDEST,
        )  # fmt: skip
    return found


@triton.jit(do_not_specialize=(*_SIZES, *_STRIDES))
def _store_kernel(
    tokens_at, scores_at, depths_at, prev_at, next_at, side_at, s0, s1, s2, s3, s4, s5,
    sort_scores, sort_stride, curr, tokens, layer_sorted, layer_order, frontier, mask_in, status,
    best_out, best_tokens_out, work_out, mask_out, width, top_k, columns, count, n_old, n_new,
    fed_count, COMPAT: tl.constexpr, C: tl.constexpr, W: tl.constexpr, K: tl.constexpr,
    M: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """K2 of one request."""
    request = tl.program_id(0).to(tl.int64)
    is_ok = tl.load(status + request) == 0
    here = tl.arange(0, C)
    n_candidates = width * top_k
    is_entry = here < n_candidates
    row = request * n_candidates
    scores = tl.load(curr + row + here, mask=is_entry, other=0.0)
    found = tl.load(tokens + row + here, mask=is_entry, other=0)
    stores = (tokens_at, scores_at, depths_at, prev_at, next_at, side_at)
    strides = (s0, s1, s2, s3, s4, s5)
    store_nodes(
        stores, strides, request, is_ok, scores, found, frontier, width, top_k, count, COMPAT, C, W
    )
    child = tl.arange(0, K)
    is_child = child < top_k
    chosen = tl.load(layer_order + row + child, mask=is_child & is_ok, other=0)
    best = tl.load(layer_sorted + row + child, mask=is_child, other=0.0)
    best_tokens = tl.load(tokens + row + chosen, mask=is_child & is_ok, other=-1)
    tl.store(best_out + request * top_k + child, tl.where(is_ok, best, 0.0), mask=is_child)
    tl.store(best_tokens_out + request * top_k + child, best_tokens, mask=is_child)
    layer = tl.load(layer_sorted + row + here, mask=is_entry, other=0.0)
    rank = rank_descending(layer, is_entry, C)
    merge_scores(
        sort_scores, sort_stride, work_out, request, is_ok, layer, rank, is_entry, best, top_k,
        n_old, n_new, K, M, True,
    )  # fmt: skip
    write_mask(
        mask_in, mask_out, request, is_ok, chosen // top_k, width, top_k, columns, fed_count, K, F
    )


@takes_call
def update_cumu_draft_state(call: CumulativeState) -> dict[str, Tensor]:
    """K2: store the layer's nodes and links, emit the next frontier, keep the score order."""
    batch, width = call.frontier_indexs.shape
    candidates = call.curr_layer_scores.shape[1]
    top_k, columns = candidates // width, call.input_tree_mask.shape[2]
    count = call.cumu_count
    n_old, n_new = min(call.verify_num, count), min(call.verify_num, count + candidates)
    outputs = state_outputs(call.sort_scores, (batch, top_k), n_old, columns)
    stores = stores_of(call)
    if batch:
        best, best_tokens, work, mask = outputs.values()
        rows = [packed(array) for array in (*stores, call.sort_scores)]
        _store_kernel[(batch,)](
            *rows[:-1], *map(row_stride, rows[:-1]), rows[-1], row_stride(rows[-1]),
            *contiguous(call.curr_layer_scores, call.topk_tokens, call.sort_layer_scores),
            *contiguous(call.sort_layer_indices, call.frontier_indexs),
            as_bytes(call.input_tree_mask), call.status, best, best_tokens, work, as_bytes(mask),
            width, top_k, columns, count, n_old, n_new, call.fed_count,
            COMPAT=call.compat, C=candidate_block(candidates), W=WIDEST, K=WIDEST, M=LONGEST,
            F=block(columns, 64),
        )  # fmt: skip
        write_back(rows, (*stores, call.sort_scores))
    return outputs


def stores_of(call: CumulativeState | DraftLayer) -> list[Tensor]:
    """The columns of the node store that a layer fills."""
    return [
        call.cumu_tokens, call.cumu_scores, call.cumu_deltas,
        call.prev_indexs, call.next_indexs, call.side_indexs,
    ]  # fmt: skip


def state_outputs(
    sort_scores: Tensor, best: tuple[int, int], n_old: int, columns: int
) -> dict[str, Tensor]:
    """Room for what K2 returns, in the order of its card."""
    device = sort_scores.device
    return {
        "output_scores": sort_scores.new_empty(best),
        "output_tokens": torch.empty(best, dtype=torch.int64, device=device),
        "work_scores": sort_scores.new_empty((best[0], n_old + best[1])),
        "output_tree_mask": torch.empty((*best, columns), dtype=torch.bool, device=device),
    }


@triton.jit(do_not_specialize=("batch", "top_k", "n_old", "n_free"))
def _gains_kernel(
    work_scores, gains_out, batch, top_k, n_old, n_free, B: tl.constexpr, K: tl.constexpr
):
    """K3: increments of every request side by side, then their mean."""
    request = tl.arange(0, B)[:, None]
    rank = tl.arange(0, K)[None, :]
    is_row = request < batch
    row = work_scores + request * (n_old + top_k)
    best = tl.load(row + n_old + rank, mask=is_row & (rank < top_k), other=0.0)
    found = gains_of(row, best, rank, n_old, top_k, n_free, is_row)
    write_gains(found, gains_out, batch, top_k, K)


@takes_call
def calculate_work_deltas(call: WorkDeltas) -> dict[str, Tensor]:
    """K3: mean gain of verifying the k best new nodes beside the old ones."""
    batch, total = call.work_scores.shape
    n_old = total - call.node_top_k
    gains = call.work_scores.new_empty(call.node_top_k + 1)
    n_free = min(call.verify_num - n_old, call.node_top_k)
    _gains_kernel[(1,)](
        call.work_scores.contiguous(), gains, batch, call.node_top_k, n_old, n_free,
        B=block(batch, 8), K=WIDEST,
    )  # fmt: skip
    return {"G": gains}
