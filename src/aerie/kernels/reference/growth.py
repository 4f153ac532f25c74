"""Reference of the drafting kernels K1 to K3."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.growth import COMPAT_DISCOUNT, CumulativeState, LayerScores, WorkDeltas
from aerie.kernels.numpy_types import Ints, quiet
from aerie.kernels.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
@quiet
def draft_tree_layer_score_index_gen_op(call: LayerScores) -> dict[str, Any]:
    """K1: path scores of a layer, sorted; the best K with parents, hidden rows and node ids."""
    batch, width = call.last_layer_scores.shape
    candidates = call.topk_probas.shape[1]
    top_k = candidates // width
    refusals = _check_tokens(call.topk_tokens, call.hot_token_id)
    curr = np.zeros((batch, candidates), np.float32)
    order = np.full((batch, candidates), -1, np.int64)
    mapped = np.full((batch, candidates), -1, np.int64)
    best = np.full((batch, top_k), -1, np.int64)
    parents = np.full((batch, top_k), -1, np.int64)
    hidden = np.zeros((batch, top_k, call.input_hidden.shape[1]), call.input_hidden.dtype)
    sorted_scores = np.zeros((batch, candidates), np.float32)
    for b in range(batch):
        if refusals.status[b]:
            continue
        probas = np.clip(np.nan_to_num(call.topk_probas[b], nan=0.0), 0.0, 1.0)
        curr[b] = probas.astype(np.float32) * np.repeat(call.last_layer_scores[b], top_k)
        # Stable on the negated scores: equal scores keep candidate order, NaN comes last.
        order[b] = np.argsort(-curr[b], kind="stable")
        sorted_scores[b] = curr[b][order[b]]
        best[b] = call.cumu_count + order[b, :top_k]
        parents[b] = order[b, :top_k] // top_k
        hidden[b] = call.input_hidden[b * width + parents[b]]
        tokens = call.topk_tokens[b]
        mapped[b] = tokens if call.hot_token_id is None else call.hot_token_id[tokens]
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
            refusals.refuse(b, Status.OUT_OF_RANGE, int(outside[0]))
        if len(repeated):
            refusals.refuse(b, Status.NOT_INJECTIVE, int(repeated[0]))
    return refusals


@takes_call
def check_update_cumu_draft_state(call: CumulativeState) -> dict[str, Any]:
    """K2, before anything is written: frontier ids and sort indices exist, siblings differ."""
    batch, width = call.frontier_indexs.shape
    refusals = Refusals(batch)
    for b in range(batch):
        for node in call.frontier_indexs[b]:
            if not 0 <= node < call.cumu_count:
                refusals.refuse(b, Status.OUT_OF_RANGE, int(node))
        nodes, counts = np.unique(call.frontier_indexs[b], return_counts=True)
        if (counts > 1).any():
            refusals.refuse(b, Status.BROKEN_TREE, int(nodes[counts > 1][0]))
        for index in call.sort_layer_indices[b]:
            if not 0 <= index < call.topk_tokens.shape[1]:
                refusals.refuse(b, Status.CANDIDATE, int(index))
        for siblings in call.topk_tokens[b].reshape(width, -1):
            ids, counts = np.unique(siblings, return_counts=True)
            if (counts > 1).any():
                refusals.refuse(b, Status.DUPLICATE_SIBLING, int(ids[counts > 1][0]))
    return refusals.words()


@takes_call
@quiet
def update_cumu_draft_state(call: CumulativeState) -> dict[str, Any]:
    """K2: store the layer's nodes and links, emit the next frontier, keep the score order."""
    batch, width = call.frontier_indexs.shape
    top_k = call.curr_layer_scores.shape[1] // width
    old = min(call.verify_num, call.cumu_count)
    new = min(call.verify_num, call.cumu_count + width * top_k)
    output_scores = np.zeros((batch, top_k), np.float32)
    output_tokens = np.full((batch, top_k), -1, np.int64)
    work_scores = np.zeros((batch, old + top_k), np.float32)
    output_mask = np.zeros((batch, top_k, call.input_tree_mask.shape[2]), np.bool_)
    for b in range(batch):
        if call.status[b]:
            continue
        for c in range(width * top_k):
            node, parent = call.cumu_count + c, call.frontier_indexs[b, c // top_k]
            depth = call.cumu_deltas[b, parent] + 1
            score = call.curr_layer_scores[b, c]
            if call.compat and depth > 1:
                score = score * np.float32(COMPAT_DISCOUNT)
            call.cumu_tokens[b, node] = call.topk_tokens[b, c]
            call.cumu_scores[b, node] = score
            call.cumu_deltas[b, node] = depth
            call.prev_indexs[b, node] = parent
            call.next_indexs[b, node] = -1
            call.side_indexs[b, node] = node + 1 if c % top_k < top_k - 1 else -1
        for t in range(width):
            call.next_indexs[b, call.frontier_indexs[b, t]] = call.cumu_count + t * top_k
        chosen = call.sort_layer_indices[b, :top_k]
        output_scores[b] = call.sort_layer_scores[b, :top_k]
        output_tokens[b] = call.topk_tokens[b, chosen]
        for i, c in enumerate(chosen):
            output_mask[b, i] = call.input_tree_mask[b, c // top_k]
            output_mask[b, i, call.fed_count + i] = True
        work_scores[b] = np.concatenate([call.sort_scores[b, :old], output_scores[b]])
        merged = np.concatenate([call.sort_scores[b, :old], call.sort_layer_scores[b]])
        call.sort_scores[b, :new] = merged[np.argsort(-merged, kind="stable")][:new]
    return {
        "output_scores": output_scores,
        "output_tokens": output_tokens,
        "work_scores": work_scores,
        "output_tree_mask": output_mask,
    }


@takes_call
@quiet
def calculate_work_deltas(call: WorkDeltas) -> dict[str, Any]:
    """K3: mean gain of verifying the k best new nodes beside the old ones."""
    batch, total = call.work_scores.shape
    n_old = total - call.node_top_k
    gains = np.zeros(call.node_top_k + 1, np.float64)
    for b in range(batch):
        # What each new score displaces: nothing while there is room, then the old ones, last first.
        old = [float(score) for score in call.work_scores[b, :n_old]]
        displaced = [0.0] * (call.verify_num - n_old) + old[::-1]
        mass = 0.0
        for k, score in enumerate(call.work_scores[b, n_old:].astype(np.float64)):
            if k < len(displaced) and score > displaced[k]:
                mass += score - displaced[k]
            gains[k + 1] += mass
    return {"G": (gains / max(batch, 1)).astype(np.float32)}


# A layer is one after the other.
STEPS = (draft_tree_layer_score_index_gen_op, update_cumu_draft_state, calculate_work_deltas)
