"""Reference of the drafting kernels K1 to K3."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.reference.refusals import Refusals
from aerie.kernels.status import Status

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Cards say where NaN and infinities go, and that sums of int64 wrap: neither is worth a warning.
quiet = np.errstate(invalid="ignore", over="ignore")

# Captured runs discount stored scores from depth 2 on by this factor (compat mode).
COMPAT_DISCOUNT = np.float32(0.9999)


@quiet
def draft_tree_layer_score_index_gen_op(
    *,
    topk_probas: Floats,
    topk_tokens: Ints,
    last_layer_scores: Floats,
    input_hidden: NDArray[Any],
    cumu_count: int,
    hot_token_id: Ints | None = None,
) -> dict[str, Any]:
    """K1: path scores of a layer, sorted; the best K with parents, hidden rows and node ids."""
    batch, width = last_layer_scores.shape
    candidates = topk_probas.shape[1]
    top_k = candidates // width
    refusals = _check_tokens(topk_tokens, hot_token_id)
    curr = np.zeros((batch, candidates), np.float32)
    order = np.full((batch, candidates), -1, np.int64)
    mapped = np.full((batch, candidates), -1, np.int64)
    best = np.full((batch, top_k), -1, np.int64)
    parents = np.full((batch, top_k), -1, np.int64)
    hidden = np.zeros((batch, top_k, input_hidden.shape[1]), input_hidden.dtype)
    sorted_scores = np.zeros((batch, candidates), np.float32)
    for b in range(batch):
        if refusals.refused(b):
            continue
        probas = np.clip(np.nan_to_num(topk_probas[b], nan=0.0), 0.0, 1.0)
        curr[b] = probas.astype(np.float32) * np.repeat(last_layer_scores[b], top_k)
        # Stable on the negated scores: equal scores keep candidate order, NaN comes last.
        order[b] = np.argsort(-curr[b], kind="stable")
        sorted_scores[b] = curr[b][order[b]]
        best[b] = cumu_count + order[b, :top_k]
        parents[b] = order[b, :top_k] // top_k
        hidden[b] = input_hidden[b * width + parents[b]]
        mapped[b] = topk_tokens[b] if hot_token_id is None else hot_token_id[topk_tokens[b]]
    return {
        "curr_layer_scores": curr,
        "sort_layer_scores": sorted_scores,
        "sort_layer_indices": order,
        "cache_topk_indices": best,
        "parent_indices_in_layer": parents,
        "output_hidden": hidden,
        "mapped_tokens": mapped,
        **refusals.words(),
    }


def _check_tokens(topk_tokens: Ints, hot_token_id: Ints | None) -> Refusals:
    refusals = Refusals(len(topk_tokens))
    if hot_token_id is None:
        return refusals
    ids, counts = np.unique(hot_token_id, return_counts=True)
    repeated = ids[counts > 1]
    for b, tokens in enumerate(topk_tokens):
        outside = tokens[(tokens < 0) | (tokens >= len(hot_token_id))]
        if len(outside):
            refusals.add(b, Status.OUT_OF_RANGE, int(outside[0]))
        if len(repeated):
            refusals.add(b, Status.NOT_INJECTIVE, int(repeated[0]))
    return refusals


def check_cumu_draft_state(
    *,
    topk_tokens: Ints,
    sort_layer_indices: Ints,
    frontier_indexs: Ints,
    cumu_count: int,
    **_: Any,
) -> dict[str, Any]:
    """K2, before anything is written: frontier ids and sort indices exist, siblings differ."""
    batch, width = frontier_indexs.shape
    refusals = Refusals(batch)
    for b in range(batch):
        for node in frontier_indexs[b]:
            if not 0 <= node < cumu_count:
                refusals.add(b, Status.OUT_OF_RANGE, int(node))
        nodes, counts = np.unique(frontier_indexs[b], return_counts=True)
        if (counts > 1).any():
            refusals.add(b, Status.BROKEN_TREE, int(nodes[counts > 1][0]))
        for index in sort_layer_indices[b]:
            if not 0 <= index < topk_tokens.shape[1]:
                refusals.add(b, Status.CANDIDATE, int(index))
        for siblings in topk_tokens[b].reshape(width, -1):
            ids, counts = np.unique(siblings, return_counts=True)
            if (counts > 1).any():
                refusals.add(b, Status.DUPLICATE_SIBLING, int(ids[counts > 1][0]))
    return refusals.words()


@quiet
def update_cumu_draft_state(
    *,
    cumu_tokens: Ints,
    cumu_scores: Floats,
    cumu_deltas: Ints,
    prev_indexs: Ints,
    next_indexs: Ints,
    side_indexs: Ints,
    sort_scores: Floats,
    curr_layer_scores: Floats,
    topk_tokens: Ints,
    sort_layer_scores: Floats,
    sort_layer_indices: Ints,
    frontier_indexs: Ints,
    input_tree_mask: Bools,
    cumu_count: int,
    verify_num: int,
    fed_count: int,
    status: NDArray[np.int32],
    compat: bool = False,
) -> dict[str, Any]:
    """K2: store the layer's nodes and links, emit the next frontier, keep the score order."""
    batch, width = frontier_indexs.shape
    top_k = curr_layer_scores.shape[1] // width
    old = min(verify_num, cumu_count)
    new = min(verify_num, cumu_count + width * top_k)
    output_scores = np.zeros((batch, top_k), np.float32)
    output_tokens = np.full((batch, top_k), -1, np.int64)
    work_scores = np.zeros((batch, old + top_k), np.float32)
    output_mask = np.zeros((batch, top_k, input_tree_mask.shape[2]), np.bool_)
    for b in range(batch):
        if status[b]:
            continue
        for c in range(width * top_k):
            node, parent = cumu_count + c, frontier_indexs[b, c // top_k]
            depth = cumu_deltas[b, parent] + 1
            score = curr_layer_scores[b, c]
            cumu_tokens[b, node] = topk_tokens[b, c]
            cumu_scores[b, node] = score * COMPAT_DISCOUNT if compat and depth > 1 else score
            cumu_deltas[b, node] = depth
            prev_indexs[b, node] = parent
            next_indexs[b, node] = -1
            side_indexs[b, node] = node + 1 if c % top_k < top_k - 1 else -1
        for t in range(width):
            next_indexs[b, frontier_indexs[b, t]] = cumu_count + t * top_k
        chosen = sort_layer_indices[b, :top_k]
        output_scores[b] = sort_layer_scores[b, :top_k]
        output_tokens[b] = topk_tokens[b, chosen]
        for i, c in enumerate(chosen):
            output_mask[b, i] = input_tree_mask[b, c // top_k]
            output_mask[b, i, fed_count + i] = True
        work_scores[b] = np.concatenate([sort_scores[b, :old], output_scores[b]])
        merged = np.concatenate([sort_scores[b, :old], sort_layer_scores[b]])
        sort_scores[b, :new] = merged[np.argsort(-merged, kind="stable")][:new]
    return {
        "output_scores": output_scores,
        "output_tokens": output_tokens,
        "work_scores": work_scores,
        "output_tree_mask": output_mask,
    }


@quiet
def calculate_work_deltas(
    *, work_scores: Floats, node_top_k: int, verify_num: int
) -> dict[str, Any]:
    """K3: mean gain of verifying the k best new nodes beside the old ones."""
    batch, total = work_scores.shape
    n_old = total - node_top_k
    gains = np.zeros(node_top_k + 1, np.float64)
    for b in range(batch):
        # What each new score displaces: nothing while there is room, then the old ones, last first.
        old = [float(score) for score in work_scores[b, :n_old]]
        displaced = [0.0] * (verify_num - n_old) + old[::-1]
        mass = 0.0
        for k, score in enumerate(work_scores[b, n_old:].astype(np.float64)):
            if k < len(displaced) and score > displaced[k]:
                mass += score - displaced[k]
            gains[k + 1] += mass
    return {"G": (gains / max(batch, 1)).astype(np.float32)}
