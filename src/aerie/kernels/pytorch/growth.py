"""PyTorch drafting kernels K1 to K3: score a layer, store it, weigh its gain."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.growth import COMPAT_DISCOUNT, CumulativeState, LayerScores, WorkDeltas
from aerie.kernels.pytorch.refusals import Refusals, check_range, first_true, no_refusals
from aerie.kernels.status import Status


@takes_call
def draft_tree_layer_score_index_gen_op(call: LayerScores) -> dict[str, Tensor]:
    """K1: path scores of a layer, sorted; the best K with parents, hidden rows and node ids."""
    batch, width = call.last_layer_scores.shape
    candidates = call.topk_probas.shape[1]
    top_k = candidates // width
    device = call.topk_probas.device
    probas = call.topk_probas.nan_to_num(0.0).clamp_(0.0, 1.0)
    curr = probas.reshape(batch, width, top_k) * call.last_layer_scores[:, :, None]
    curr = curr.reshape(batch, candidates)
    # Ascending on the negated scores, which leaves NaN behind; descending, torch has it in front.
    negated, order = torch.sort(-curr, dim=1, stable=True)
    chosen = order[:, :top_k]
    parents = chosen // top_k
    # [B, K] flat row of each chosen candidate's parent in input_hidden
    slots = parents + torch.arange(0, batch * width, width, device=device)[:, None]
    hidden = call.input_hidden.index_select(0, slots.reshape(-1))
    outputs = {
        "curr_layer_scores": curr,
        "sort_layer_scores": -negated,
        "sort_layer_indices": order,
        "cache_topk_indices": chosen + call.cumu_count,
        "parent_indices_in_layer": parents,
        "output_hidden": hidden.reshape(batch, top_k, call.input_hidden.shape[1]),
    }
    if call.hot_token_id is None:
        outputs["mapped_tokens"] = call.topk_tokens.clone()
        return {**outputs, **no_refusals(batch, device)}
    refusals = _check_map(call.topk_tokens, call.hot_token_id)
    known = call.topk_tokens.clamp(0, call.hot_token_id.shape[0] - 1)
    outputs["mapped_tokens"] = call.hot_token_id.take(known)
    for name, array in outputs.items():
        refused = refusals.refused.view(batch, *[1] * (array.dim() - 1))
        array.masked_fill_(refused, 0 if name.endswith(("scores", "hidden")) else -1)
    return {**outputs, **refusals.words()}


def _check_map(topk_tokens: Tensor, hot_token_id: Tensor) -> Refusals:
    batch, size = topk_tokens.shape[0], hot_token_id.shape[0]
    refusals = Refusals(batch, topk_tokens.device)
    check_range(refusals, Status.OUT_OF_RANGE, topk_tokens, 0, size)
    if size > 1:
        # The target's vocabulary is not an axis of this kernel: sorting finds repeats without it.
        ordered = hot_token_id.sort().values
        repeats = ordered[1:] == ordered[:-1]
        repeated = ordered.gather(0, repeats.byte().argmax(dim=0, keepdim=True))
        is_repeated = repeats.any().expand(batch)
        refusals.add(Status.NOT_INJECTIVE, is_repeated, repeated.expand(batch))
    return refusals


@takes_call
def check_update_cumu_draft_state(call: CumulativeState) -> dict[str, Tensor]:
    """K2, before anything is written: frontier ids and sort indices exist, siblings differ."""
    batch, width = call.frontier_indexs.shape
    candidates = call.topk_tokens.shape[1]
    refusals = Refusals(batch, call.topk_tokens.device)
    check_range(refusals, Status.OUT_OF_RANGE, call.frontier_indexs, 0, call.cumu_count)
    _refuse_twins(refusals, Status.BROKEN_TREE, call.frontier_indexs[:, None, :])
    check_range(refusals, Status.CANDIDATE, call.sort_layer_indices, 0, candidates)
    siblings = call.topk_tokens.reshape(batch, width, candidates // width)
    _refuse_twins(refusals, Status.DUPLICATE_SIBLING, siblings)
    return refusals.words()


def _refuse_twins(refusals: Refusals, code: Status, groups: Tensor) -> None:
    """Refuse requests where a group of `groups[B, W, K]` holds a value twice; value = the twin."""
    if groups.shape[2] < 2:
        return
    # Side by side once sorted, equal neighbours are twins.
    ordered = groups.sort(dim=2).values
    is_twin = (ordered[:, :, 1:] == ordered[:, :, :-1]).flatten(1)
    twin = ordered[:, :, 1:].flatten(1).gather(1, first_true(is_twin)[:, None])
    refusals.add(code, is_twin.any(dim=1), twin[:, 0])


@takes_call
def update_cumu_draft_state(call: CumulativeState) -> dict[str, Tensor]:
    """K2: store the layer's nodes and links, emit the next frontier, keep the score order."""
    batch, width = call.frontier_indexs.shape
    candidates = call.curr_layer_scores.shape[1]
    top_k = candidates // width
    device = call.curr_layer_scores.device
    count, most = call.cumu_count, call.verify_num
    n_old, n_new = min(most, count), min(most, count + candidates)
    ok = (call.status == 0)[:, None]  # [B, 1]
    # A refused request may name nodes that do not exist; what it would write is dropped below.
    frontier = call.frontier_indexs.clamp(0, call.cumu_count - 1)
    depths = (call.cumu_deltas.gather(1, frontier) + 1).repeat_interleave(top_k, dim=1)
    scores = call.curr_layer_scores
    if call.compat:
        scores = torch.where(depths > 1, scores * COMPAT_DISCOUNT, scores)
    following = torch.arange(call.cumu_count + 1, call.cumu_count + candidates + 1, device=device)
    following = following.view(width, top_k)
    first_child = following[:, 0] - 1  # [W] node id of each slot's first child
    following[:, -1] = -1

    here = slice(call.cumu_count, call.cumu_count + candidates)
    _store(call.cumu_tokens[:, here], call.topk_tokens, ok)
    _store(call.cumu_scores[:, here], scores, ok)
    _store(call.cumu_deltas[:, here], depths, ok)
    _store(call.prev_indexs[:, here], frontier.repeat_interleave(top_k, dim=1), ok)
    _store(call.side_indexs[:, here], following.view(1, candidates), ok)
    call.next_indexs[:, here].masked_fill_(ok, -1)
    # A refused request writes back what it reads, so that a clamped index changes nothing.
    child = torch.where(ok, first_child, call.next_indexs.gather(1, frontier))
    call.next_indexs.scatter_(1, frontier, child)

    chosen = call.sort_layer_indices[:, :top_k].clamp(0, candidates - 1)
    output_scores = torch.where(ok, call.sort_layer_scores[:, :top_k], 0.0)
    old_scores = torch.where(ok, call.sort_scores[:, :n_old], 0.0)
    work_scores = torch.cat([old_scores, output_scores], dim=1)
    # Old entries stand in front and the sort is stable: on equality the older one stays ahead.
    merged = -torch.cat([call.sort_scores[:, :n_old], call.sort_layer_scores], dim=1)
    merged = torch.sort(merged, dim=1, stable=True).values
    _store(call.sort_scores[:, :n_new], -merged[:, :n_new], ok)

    # [B, K] flat row of each chosen child's parent in input_tree_mask
    parents = chosen // top_k + torch.arange(0, batch * width, width, device=device)[:, None]
    mask = call.input_tree_mask.flatten(0, 1).index_select(0, parents.reshape(-1))
    mask = mask.view(batch, top_k, call.input_tree_mask.shape[2])
    mask[:, :, call.fed_count : call.fed_count + top_k].diagonal(dim1=1, dim2=2).fill_(True)
    return {
        "output_scores": output_scores,
        "output_tokens": call.topk_tokens.gather(1, chosen).masked_fill_(~ok, -1),
        "work_scores": work_scores,
        "output_tree_mask": mask.logical_and_(ok[:, :, None]),
    }


def _store(columns_out: Tensor, values: Tensor, ok: Tensor) -> None:
    """Write `values` into a slice of the store, for the requests that are ok."""
    torch.where(ok, values, columns_out, out=columns_out)


@takes_call
def calculate_work_deltas(call: WorkDeltas) -> dict[str, Tensor]:
    """K3: mean gain of verifying the k best new nodes beside the old ones."""
    batch, total = call.work_scores.shape
    n_old = total - call.node_top_k
    gains = torch.zeros(call.node_top_k + 1, dtype=torch.float64, device=call.work_scores.device)
    if batch == 0:
        return {"G": gains.float()}
    # The first new scores fill free slots; each later one meets the smallest old score still
    # kept. Once all old ones are out, a new score could only displace a better new one.
    n_free = min(call.verify_num - n_old, call.node_top_k)
    n_met = min(call.node_top_k - n_free, n_old)
    new = call.work_scores[:, n_old : n_old + n_free + n_met].double()  # [B, n_free + n_met]
    met = torch.zeros_like(new)
    met[:, n_free:] = call.work_scores[:, n_old - n_met : n_old].flip(1)
    # NaN is above nothing, and gains nothing.
    gained = torch.where(new > met, new - met, 0.0)
    totals = gains[1:].narrow(0, 0, n_free + n_met)
    torch.sum(gained, dim=0, out=totals)
    return {"G": gains.cumsum_(0).div_(batch).float()}


# A layer is one after the other.
STEPS = (draft_tree_layer_score_index_gen_op, update_cumu_draft_state, calculate_work_deltas)
