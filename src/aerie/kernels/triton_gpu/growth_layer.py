"""Triton R7: a whole draft layer of every request, K1, K2 and K3's increments in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.growth import DraftLayer
from aerie.kernels.triton_gpu.device import at_rank, rank_descending
from aerie.kernels.triton_gpu.growth import (
    HIDDEN_BLOCK,
    WIDEST,
    candidate_block,
    gather_hidden,
    stores_of,
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
from aerie.kernels.triton_gpu.launch import as_bytes, block, contiguous, row_stride, words
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn

_SIZES = (
    "width", "top_k", "columns", "count", "n_old", "n_new", "n_free", "fed_count",
    "s0", "s1", "s2", "s3", "s4", "s5", "sort_stride",
)  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def _layer_kernel(
    tokens_at, scores_at, depths_at, prev_at, next_at, side_at, s0, s1, s2, s3, s4, s5,
    sort_scores, sort_stride, probas, tokens, last_scores, hidden, frontier, mask_in,
    ids_out, scores_out, tokens_out, hidden_out, mask_out, increments_out, gains_out,
    status_out, detail_out, width, top_k, size, columns, count, n_old, n_new, n_free, fed_count,
    GAINS: tl.constexpr, C: tl.constexpr, W: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    F: tl.constexpr, H: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One request; part 0 stores the layer, every part gathers its columns of the hidden rows."""
    take_turn(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    here = tl.arange(0, C)
    n_candidates = width * top_k
    is_entry = here < n_candidates
    found = tl.load(tokens + request * n_candidates + here, mask=is_entry, other=0)
    # Every part checks for itself: parts of one request do not wait for each other.
    status = tl.zeros([], tl.int32)
    detail = tl.zeros([], tl.int64)
    status, detail = check_frontier(status, detail, frontier, request, width, count, W)
    status, detail = check_siblings(status, detail, found, here // top_k, is_entry, C)
    is_ok = status == 0
    curr = path_scores(probas, last_scores, request, width, top_k, C)
    # Ranks by counting instead of a sort: no step waits for another, and ties need no care.
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
        # No node for a refused request: its next layer is then refused as well.
        tl.store(ids_out + out, tl.where(is_ok, count + chosen, -1).to(tl.int64), mask=is_child)
        tl.store(scores_out + out, tl.where(is_ok, best, 0.0), mask=is_child)
        tl.store(tokens_out + out, best_tokens, mask=is_child)
        tl.store(status_out + request, status)
        tl.store(detail_out + request, detail)
        if GAINS:
            # Before the old order is overwritten below.
            old_row = sort_scores + request * sort_stride
            gained = gains_of(old_row, best, child, n_old, top_k, n_free, is_ok)
            tl.store(increments_out + request * K + child, gained)
        else:
            # Here, for zeros of their own would be a launch of their own.
            entry = tl.arange(0, 2 * K)
            tl.store(gains_out + entry, 0.0, mask=(entry <= top_k) & (request == 0))
        merge_scores(
            sort_scores, sort_stride, sort_scores, request, is_ok, curr, rank, is_entry, best,
            top_k, n_old, n_new, K, M, False,
        )  # fmt: skip
        write_mask(
            mask_in, mask_out, request, is_ok, parent_slot, width, top_k, columns, fed_count, K, F
        )
    gather_hidden(hidden, hidden_out, request, part, is_ok, parent_slot, width, top_k, size, K, H)


@triton.jit(do_not_specialize=("batch", "top_k"))
def _gain_kernel(increments, gains_out, batch, top_k, K: tl.constexpr, B: tl.constexpr):
    """G of the whole batch. A launch of its own: the last request to arrive would need a counter
    that must be reset, and two engines on one device would count on the same one."""
    request = tl.arange(0, B)[:, None]
    child = tl.arange(0, K)[None, :]
    every = tl.load(increments + request * K + child, mask=request < batch, other=0.0)
    write_gains(every, gains_out, batch, top_k, K)


@takes_call
def grow_draft_layer(call: DraftLayer) -> dict[str, Tensor]:
    """R7: score, sort, store, link, mask and weigh one layer.

    Each request is checked before it is written, in the same launch. A `status` is that of a check
    that came first, where errors are raised: the same again.
    """
    (batch, width), candidates = call.last_layer_scores.shape, call.topk_probas.shape[1]
    top_k, count = candidates // width, call.cumu_count
    columns, size = call.input_tree_mask.shape[2], call.input_hidden.shape[1]
    n_old, n_new = min(call.verify_num, count), min(call.verify_num, count + candidates)
    device, best = call.input_hidden.device, (batch, top_k)
    outputs = {
        "node_ids": torch.empty(best, dtype=torch.int64, device=device),
        "output_scores": torch.empty(best, device=device),
        "output_tokens": torch.empty(best, dtype=torch.int64, device=device),
        "output_hidden": call.input_hidden.new_empty((*best, size)),
        "output_tree_mask": torch.empty((*best, columns), dtype=torch.bool, device=device),
    }
    found = words(batch, device)
    status, detail = found.values()
    if call.status is not None:
        found = {}
    is_weighed = call.weigh and batch > 0
    gains = (torch.empty if batch else torch.zeros)(top_k + 1, device=device)
    if not batch:
        return {**outputs, "G": gains, **found}
    increments = torch.empty((batch, WIDEST), dtype=torch.float64, device=device)
    stores = stores_of(call)
    _layer_kernel[(batch, max(1, triton.cdiv(size, HIDDEN_BLOCK)))](
        *stores, *map(row_stride, stores), call.sort_scores, row_stride(call.sort_scores),
        *contiguous(call.topk_probas, call.topk_tokens, call.last_layer_scores),
        *contiguous(call.input_hidden, call.frontier_indexs), as_bytes(call.input_tree_mask),
        outputs["node_ids"], outputs["output_scores"], outputs["output_tokens"],
        outputs["output_hidden"], as_bytes(outputs["output_tree_mask"]), increments,
        gains, status, detail, width, top_k, size, columns, count, n_old, n_new,
        min(call.verify_num - n_old, top_k), call.fed_count,
        GAINS=is_weighed, C=candidate_block(candidates), W=WIDEST, K=WIDEST,
        M=block(n_old, 16), F=block(columns, 64), H=HIDDEN_BLOCK,
        # Tables of candidates by candidates: 8 warps take 8.2 µs, 4 take 10.2 (H200, 2026-11).
        num_warps=8, **overlapped(call.input_hidden),
    )  # fmt: skip
    if is_weighed:
        _gain_kernel[(1,)](increments, gains, batch, top_k, K=WIDEST, B=block(batch, 8))
    return {**outputs, "G": gains, **found}


@triton.jit(do_not_specialize=("width", "top_k", "count"))
def _check_kernel(
    tokens, frontier, status_out, detail_out, width, top_k, count,
    C: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Why one request is refused, if it is."""
    request = tl.program_id(0).to(tl.int64)
    here = tl.arange(0, C)
    is_entry = here < width * top_k
    found = tl.load(tokens + request * width * top_k + here, mask=is_entry, other=0)
    status = tl.zeros([], tl.int32)
    detail = tl.zeros([], tl.int64)
    status, detail = check_frontier(status, detail, frontier, request, width, count, W)
    status, detail = check_siblings(status, detail, found, here // top_k, is_entry, C)
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)


@takes_call
def check_grow_draft_layer(call: DraftLayer) -> dict[str, Tensor]:
    """R7, before anything is written: asked where a refusal raises an error."""
    (batch, width), candidates = call.frontier_indexs.shape, call.topk_tokens.shape[1]
    found = words(batch, call.frontier_indexs.device)
    if batch:
        _check_kernel[(batch,)](
            *contiguous(call.topk_tokens, call.frontier_indexs), *found.values(), width,
            candidates // width, call.cumu_count, C=candidate_block(candidates), W=WIDEST,
        )  # fmt: skip
    return found
