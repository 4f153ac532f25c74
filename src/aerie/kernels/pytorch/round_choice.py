"""PyTorch choice of a round, R8 to R10: no host read, one shape whatever is chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import KNOTS
from aerie.kernels.cards.round_choice import BestNodes, NotedNodes, PlannedNodes


def best_of_scores(scores: Tensor, n_nodes: int) -> Tensor:
    """The best `n_nodes` of each request by (score, id), none without a score. [B, N] bool"""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(1, order[:, :n_nodes], True)
    return chosen & (scores > 0)


@takes_call
def choose_best_nodes(call: BestNodes) -> dict[str, Tensor]:
    """R8: the best nodes of each request."""
    _write(best_of_scores(call.cumu_scores, call.verify_num), call.selected, call.n_chosen)
    return {}


def _write(chosen: Tensor, selected_out: Tensor, n_chosen_out: Tensor) -> None:
    selected_out.copy_(chosen)
    n_chosen_out.copy_(chosen.sum(dim=1))


def path_weights(call: PlannedNodes, corrections: Tensor) -> Tensor:
    """Acceptance probability of every path, [B, N] f32; never above the parent's.

    `corrections` [depths * knots] f64 are added to the scores.
    """
    scores, depths = call.cumu_scores, call.cumu_deltas
    exact = scores.double()
    place = exact.clamp(0, 1).sqrt() * (KNOTS - 1)
    low = place.long().clamp(max=KNOTS - 2)
    knot = (depths.clamp(1, corrections.shape[0] // KNOTS) - 1) * KNOTS + low
    left, right = corrections[knot], corrections[knot + 1]
    corrected = exact + (left + (place - low) * (right - left))
    weights = torch.where(scores > 0, corrected.clamp(0, 1), 0.0).float()
    weights = torch.where(depths == 0, scores, weights)
    above = call.prev_indexs.clamp(min=0)
    # Pointer doubling: after n rounds a node has seen 2^n - 1 of its ancestors.
    for _ in range(call.deepest.bit_length()):
        weights = torch.minimum(weights, weights.gather(1, above))
        above = above.gather(1, above)
    return weights


def admissible(weights: Tensor, verify_num: int) -> Tensor:
    """The weights of the best `verify_num` nodes of each request; 0 for the others."""
    return weights * best_of_scores(weights, verify_num)


def choose_forest(
    weights: Tensor, row_sizes: Tensor, seconds: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor]:
    """The forest that is worth most [B, N] bool, and which of the sizes on offer it is [1] i64.

    `weights` [B, N] never rise from a parent to its child, a parent's id is smaller and node 0 is
    the root. Then for every n the best forest is the n largest weights of the whole batch, by
    (weight, request, node id), and it is closed under ancestors. Cost need not be monotone: every
    size is weighed.
    """
    batch, n_nodes = weights.shape
    keys = weights.clone()
    keys[:, 0] = torch.inf  # roots first: they are verified whatever happens
    order = torch.sort(keys.view(-1), descending=True, stable=True).indices
    mass = weights.reshape(-1)[order].double().cumsum(0)
    # A size beyond the nodes that weigh anything is weighed with those there are, at its own cost.
    n_rows = torch.minimum(row_sizes, (weights > 0).sum())
    value = mass[(n_rows - 1).clamp(min=0)] - rate * seconds
    # One entry, not none: an index without dimensions would be read by the host.
    best = torch.where(value.isnan(), -torch.inf, value).argmax(dim=0, keepdim=True)
    ranks = torch.arange(batch * n_nodes, device=weights.device)
    chosen = torch.zeros(batch * n_nodes, dtype=torch.bool, device=weights.device)
    return chosen.scatter(0, order, ranks < n_rows[best]).view(batch, n_nodes), best


@takes_call
def choose_planned_nodes(call: PlannedNodes) -> dict[str, Tensor]:
    """R9: the forest that is worth most at the offer's rate."""
    if not call.cumu_scores.shape[0]:
        return {}
    n_sizes = call.row_sizes.shape[0]
    lengths = (1, n_sizes, call.numbers.shape[0] - 1 - n_sizes)
    rate, seconds, corrections = call.numbers.split(lengths)
    weights = path_weights(call, corrections)
    chosen, _ = choose_forest(admissible(weights, call.verify_num), call.row_sizes, seconds, rate)
    _write(chosen, call.selected, call.n_chosen)
    return {}


@takes_call
def note_chosen_nodes(call: NotedNodes) -> dict[str, Tensor]:
    """R10: the chosen nodes in the order of their rows."""
    batch, n_rows = call.noted_scores.shape
    row_of = call.selected.long().cumsum(1) - 1
    # What is not chosen, and rows beyond the last noted one, go to a column that is cut off.
    row = torch.where(call.selected, row_of, n_rows).clamp_(max=n_rows)
    above = row_of.gather(1, call.prev_indexs.clamp(min=0)).masked_fill_(call.prev_indexs < 0, -1)
    noted = (
        (call.cumu_scores, call.noted_scores),
        (call.cumu_deltas, call.noted_depths),
        (call.cumu_tokens, call.noted_tokens),
    )
    for values, out in noted:
        packed = values.new_zeros((batch, n_rows + 1)).scatter_(1, row, values)
        out.copy_(packed[:, :n_rows])
    packed = above.new_full((batch, n_rows + 1), -1).scatter_(1, row, above)
    call.noted_parents.copy_(packed[:, :n_rows])
    return {}
