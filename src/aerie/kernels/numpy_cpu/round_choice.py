"""NumPy choice of a round, R8 to R10: thresholds before sorts, and only what weighs is sorted."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import KNOTS
from aerie.kernels.cards.round_choice import BestNodes, NotedNodes, PlannedNodes
from aerie.kernels.numpy_types import Bools, Doubles, Floats


def best_of_scores(scores: Floats, n_nodes: int) -> Bools:
    """The best `n_nodes` of each request by (score, id), none without a score. [B, N]"""
    is_scored: Bools = scores > 0
    size = scores.shape[1]
    if size <= n_nodes or not len(scores):
        return is_scored
    if np.add.reduce(is_scored, axis=1).max() <= n_nodes:
        return is_scored
    # The smallest score that is taken; of those equal to it the first that still fit.
    least = np.partition(scores, size - n_nodes, axis=1)[:, size - n_nodes, None]
    is_above = scores > least
    is_equal = scores == least
    n_left = n_nodes - np.add.reduce(is_above, axis=1, dtype=np.int64)
    is_taken: Bools = is_equal.cumsum(axis=1) <= n_left[:, None]
    is_taken &= is_equal
    is_taken |= is_above
    is_taken &= is_scored
    return is_taken


@takes_call
def choose_best_nodes(call: BestNodes) -> dict[str, Any]:
    """R8: the best nodes of each request."""
    call.selected[...] = best_of_scores(call.cumu_scores, call.verify_num)
    call.n_chosen[...] = np.add.reduce(call.selected, axis=1)
    return {}


def path_weights(call: PlannedNodes, corrections: Doubles) -> Floats:
    """Acceptance probability of every path, never above the parent's. [B, N]"""
    scores, depths = call.cumu_scores, call.cumu_deltas
    batch, size = scores.shape
    exact = scores.astype(np.float64)
    place = np.sqrt(np.clip(exact, 0.0, 1.0)) * (KNOTS - 1)
    low = np.minimum(place.astype(np.int64), KNOTS - 2)
    place -= low
    low += (np.clip(depths, 1, len(corrections) // KNOTS) - 1) * KNOTS
    left = corrections.take(low)
    rise = corrections[1:] - corrections[:-1]
    place *= rise.take(low)
    exact += place + left
    weights = np.clip(exact, 0.0, 1.0).astype(np.float32)
    weights *= scores > 0
    np.copyto(weights, scores, where=depths == 0)
    # Flat places of the parents: gathers along one axis are the quick ones.
    above = np.maximum(call.prev_indexs, 0) + (np.arange(batch) * size)[:, None]
    for _ in range(call.deepest.bit_length()):
        np.minimum(weights, weights.take(above), out=weights)
        above = above.take(above)
    return weights


@takes_call
def choose_planned_nodes(call: PlannedNodes) -> dict[str, Any]:
    """R9: the forest that is worth most at the offer's rate."""
    batch, size = call.cumu_scores.shape
    if not batch:
        return {}
    n_sizes = len(call.row_sizes)
    seconds, corrections = call.numbers[1 : 1 + n_sizes], call.numbers[1 + n_sizes :]
    weights = path_weights(call, corrections)
    usable = best_of_scores(weights, call.verify_num)
    usable[:, 0] = False
    nodes = usable.reshape(-1).nonzero()[0]
    found = weights.reshape(-1)[nodes]
    order = (-found).argsort(kind="stable")
    # Roots first: they are verified whatever happens.
    mass = np.concatenate((weights[:, 0], found[order]), dtype=np.float64).cumsum()
    n_usable = len(found) + int(np.count_nonzero(weights[:, 0] > 0))
    n_rows = np.minimum(call.row_sizes, n_usable)
    with np.errstate(invalid="ignore"):  # no rate, and a size that is not on offer
        value = mass[np.maximum(n_rows - 1, 0)] - call.numbers[0] * seconds
    if np.isnan(value).any():
        value = np.where(np.isnan(value), -np.inf, value)
    n_taken = int(n_rows[value.argmax()])
    chosen = np.zeros(batch * size, np.bool_)
    chosen[: min(n_taken, batch) * size : size] = True
    chosen[nodes[order[: max(n_taken - batch, 0)]]] = True
    call.selected[...] = chosen.reshape(batch, size)
    call.n_chosen[...] = np.add.reduce(call.selected, axis=1)
    return {}


@takes_call
def note_chosen_nodes(call: NotedNodes) -> dict[str, Any]:
    """R10: the chosen nodes in the order of their rows."""
    for noted in (call.noted_scores, call.noted_depths, call.noted_tokens):
        noted[...] = 0
    call.noted_parents[...] = -1
    row_of = np.add.accumulate(call.selected, axis=1, dtype=np.int32)
    request, node = call.selected.nonzero()
    row = row_of[request, node] - 1
    if len(row) and row.max() >= call.noted_scores.shape[1]:
        is_noted = row < call.noted_scores.shape[1]
        request, node, row = request[is_noted], node[is_noted], row[is_noted]
    at, place = (request, row), (request, node)
    call.noted_scores[at] = call.cumu_scores[place]
    call.noted_depths[at] = call.cumu_deltas[place]
    call.noted_tokens[at] = call.cumu_tokens[place]
    parent = call.prev_indexs[place]
    call.noted_parents[at] = np.where(parent < 0, -1, row_of[request, parent] - 1)
    return {}
