"""NumPy drafting kernels K1 to K3: score a layer, store it, weigh its gain."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards.growth import COMPAT_DISCOUNT, CumulativeState, LayerScores, WorkDeltas
from aerie.kernels.numpy_types import Ints, quiet
from aerie.kernels.refusals import Refusals, check_range, check_twins
from aerie.kernels.status import Status


@takes_call
@quiet
def draft_tree_layer_score_index_gen_op(call: LayerScores) -> dict[str, Any]:
    """K1: path scores of a layer, sorted; the best K with parents, hidden rows and node ids."""
    batch, width = call.last_layer_scores.shape
    candidates = call.topk_probas.shape[1]
    top_k = candidates // width
    # fmax and fmin prefer the number to a NaN, so NaN becomes 0.
    probas = np.fmin(np.fmax(call.topk_probas, np.float32(0)), np.float32(1))
    curr = probas.reshape(batch, width, top_k) * call.last_layer_scores[:, :, None]
    curr = curr.reshape(batch, candidates)
    # Stable on the negated scores: equal scores keep candidate order, NaN comes last.
    order = (-curr).argsort(axis=1, kind="stable")
    requests = np.arange(batch)[:, None]
    parents = order[:, :top_k] // top_k
    refusals = Refusals(batch)
    if call.hot_token_id is None:
        mapped = call.topk_tokens.copy()
    else:
        _check_map(refusals, call.topk_tokens, call.hot_token_id)
        mapped = call.hot_token_id.take(call.topk_tokens, mode="clip")
    outputs = {
        "curr_layer_scores": curr,
        "sort_layer_scores": curr[requests, order],
        "sort_layer_indices": order,
        "cache_topk_indices": order[:, :top_k] + call.cumu_count,
        "parent_indices_in_layer": parents,
        "output_hidden": call.input_hidden.take(parents + requests * width, axis=0),
        "mapped_tokens": mapped,
    }
    if refusals.found:
        for name, array in outputs.items():
            array[refusals.status != 0] = 0 if name.endswith(("scores", "hidden")) else -1
    return {**outputs, **refusals.words()}


def _check_map(refusals: Refusals, topk_tokens: Ints, hot_token_id: Ints) -> None:
    check_range(refusals, Status.OUT_OF_RANGE, topk_tokens, len(hot_token_id))
    ordered = np.sort(hot_token_id)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        everyone = np.arange(len(topk_tokens))
        refusals.add_at(Status.NOT_INJECTIVE, everyone, np.full_like(everyone, repeated[0]))


@takes_call
def check_update_cumu_draft_state(call: CumulativeState) -> dict[str, Any]:
    """K2, before anything is written: frontier ids and sort indices exist, siblings differ."""
    batch, width = call.frontier_indexs.shape
    candidates = call.topk_tokens.shape[1]
    refusals = Refusals(batch)
    check_range(refusals, Status.OUT_OF_RANGE, call.frontier_indexs, call.cumu_count)
    check_twins(refusals, Status.BROKEN_TREE, call.frontier_indexs[:, None, :])
    check_range(refusals, Status.CANDIDATE, call.sort_layer_indices, candidates)
    siblings = call.topk_tokens.reshape(batch, width, candidates // width)
    check_twins(refusals, Status.DUPLICATE_SIBLING, siblings)
    return refusals.words()


@takes_call
def update_cumu_draft_state(call: CumulativeState) -> dict[str, Any]:
    """K2: store the layer's nodes and links, emit the next frontier, keep the score order."""
    batch, width = call.frontier_indexs.shape
    candidates = call.curr_layer_scores.shape[1]
    top_k = candidates // width
    count, most = call.cumu_count, call.verify_num
    n_old, n_new = min(most, count), min(most, count + candidates)
    # Only requests that are not refused are computed; a slice makes views of all of them.
    kept = (call.status == 0).nonzero()[0] if call.status.any() else slice(None)
    frontier, tokens = call.frontier_indexs[kept], call.topk_tokens[kept]
    ranked = call.sort_layer_scores[kept]
    rows = np.arange(len(frontier))[:, None]
    requests = rows if isinstance(kept, slice) else kept[:, None]
    depths = np.repeat(call.cumu_deltas[requests, frontier] + 1, top_k, axis=1)
    scores = call.curr_layer_scores[kept]
    if call.compat:
        scores = np.where(depths > 1, scores * np.float32(COMPAT_DISCOUNT), scores)
    following = np.arange(count + 1, count + candidates + 1)
    following[top_k - 1 :: top_k] = -1

    here = slice(count, count + candidates)
    call.cumu_tokens[kept, here] = tokens
    call.cumu_scores[kept, here] = scores
    call.cumu_deltas[kept, here] = depths
    call.prev_indexs[kept, here] = np.repeat(frontier, top_k, axis=1)
    call.side_indexs[kept, here] = following
    call.next_indexs[kept, here] = -1
    call.next_indexs[requests, frontier] = np.arange(count, here.stop, top_k)

    chosen = call.sort_layer_indices[kept, :top_k]
    old_scores = call.sort_scores[kept, :n_old]
    work_scores = np.concatenate((old_scores, ranked[:, :top_k]), axis=1)
    # Values alone are kept, so that equal ones need no order; negated, for sort ascends.
    merged = -np.concatenate((old_scores, ranked), axis=1)
    merged.sort(axis=1)
    call.sort_scores[kept, :n_new] = -merged[:, :n_new]

    mask = call.input_tree_mask[requests, chosen // top_k]
    slots = np.arange(top_k)
    mask[:, slots, call.fed_count + slots] = True
    outputs = {
        "output_scores": work_scores[:, n_old:].copy(),
        "output_tokens": tokens[rows, chosen],
        "work_scores": work_scores,
        "output_tree_mask": mask,
    }
    if isinstance(kept, slice):
        return outputs
    return {name: _spread(array, kept, batch) for name, array in outputs.items()}


def _spread(array: NDArray[Any], kept: Ints, batch: int) -> NDArray[Any]:
    """Rows of the kept requests at their places among all; ids of a refused one are -1."""
    spread = np.full((batch, *array.shape[1:]), -1 if array.dtype == np.int64 else 0, array.dtype)
    spread[kept] = array
    return spread


@takes_call
@quiet
def calculate_work_deltas(call: WorkDeltas) -> dict[str, Any]:
    """K3: mean gain of verifying the k best new nodes beside the old ones."""
    batch, total = call.work_scores.shape
    n_old = total - call.node_top_k
    gains = np.zeros(call.node_top_k + 1, np.float64)
    if batch == 0:
        return {"G": gains.astype(np.float32)}
    # The first new scores fill free slots; each later one meets the smallest old score still
    # kept. Once all old ones are out, a new score could only displace a better new one.
    n_free = min(call.verify_num - n_old, call.node_top_k)
    n_met = min(call.node_top_k - n_free, n_old)
    gained = call.work_scores[:, n_old : n_old + n_free + n_met].astype(np.float64)
    if n_met:
        gained[:, n_free:] -= call.work_scores[:, n_old - n_met : n_old][:, ::-1]
    # fmax prefers the number to a NaN, and to the difference of equal infinities.
    np.fmax(gained, 0.0, out=gained)
    np.add.reduce(gained, axis=0, out=gains[1 : 1 + n_free + n_met])
    return {"G": (np.add.accumulate(gains) / batch).astype(np.float32)}


# A layer is one after the other.
STEPS = (draft_tree_layer_score_index_gen_op, update_cumu_draft_state, calculate_work_deltas)
