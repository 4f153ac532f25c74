"""Reference of a round's choice, R8 to R10: which nodes are verified, and what is noted of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import KNOTS
from aerie.kernels.cards.round_choice import BestNodes, NotedNodes, PlannedNodes
from aerie.kernels.numpy_types import Doubles, Floats, Ints


@takes_call
def choose_best_nodes(call: BestNodes) -> dict[str, Any]:
    """R8: the best nodes of each request."""
    for b, scores in enumerate(call.cumu_scores):
        call.selected[b] = False
        call.selected[b, _best(scores, call.verify_num)] = True
        call.n_chosen[b] = call.selected[b].sum()
    return {}


def _best(scores: Floats, n_nodes: int) -> list[int]:
    """The best nodes by (score, id), never one without a score."""
    order = sorted(range(len(scores)), key=lambda node: (-scores[node], node))
    return [node for node in order[:n_nodes] if scores[node] > 0]


@takes_call
def choose_planned_nodes(call: PlannedNodes) -> dict[str, Any]:
    """R9: the forest that is worth most at the offer's rate; `deepest` is not needed here."""
    rate, seconds = call.numbers[0], call.numbers[1 : 1 + len(call.row_sizes)]
    corrections = call.numbers[1 + len(call.row_sizes) :].reshape(-1, KNOTS)
    weights = np.zeros_like(call.cumu_scores)
    for b, scores in enumerate(call.cumu_scores):
        own = _weights(scores, call.cumu_deltas[b], call.prev_indexs[b], corrections)
        kept = _best(own, call.verify_num)
        weights[b, kept] = own[kept]
    batch, n_nodes = weights.shape
    order = sorted(
        ((b, node) for b in range(batch) for node in range(n_nodes)),
        key=lambda place: (place[1] != 0, -weights[place] if place[1] else 0.0, place),
    )
    n_usable = int((weights > 0).sum())
    best_value, n_rows = -np.inf, min(int(call.row_sizes[0]), n_usable)
    for size, cost in zip(call.row_sizes.tolist(), seconds.tolist(), strict=True):
        forest = order[: min(size, n_usable)]
        with np.errstate(invalid="ignore"):  # no rate, and a size that is not on offer
            value = sum(float(weights[place]) for place in forest) - rate * cost
        if value > best_value:
            best_value, n_rows = value, len(forest)
    call.selected[:] = False
    for place in order[:n_rows]:
        call.selected[place] = True
    call.n_chosen[:] = call.selected.sum(axis=1)
    return {}


def _weights(scores: Floats, depths: Ints, parents: Ints, corrections: Doubles) -> Floats:
    """Acceptance probability of the path to every node of a request, never above its parent's."""
    weights = scores.copy()
    for node in range(len(scores)):
        if depths[node] == 0:
            continue
        own = np.float32(0)
        if scores[node] > 0:
            score = float(scores[node])
            place = np.sqrt(score) * (KNOTS - 1)
            low = min(int(place), KNOTS - 2)
            knots = corrections[min(int(depths[node]), len(corrections)) - 1]
            correction = knots[low] + (place - low) * (knots[low + 1] - knots[low])
            own = np.float32(min(max(score + correction, 0.0), 1.0))
        # Parents come first: theirs is final.
        weights[node] = min(own, weights[max(parents[node], 0)])
    return weights


@takes_call
def note_chosen_nodes(call: NotedNodes) -> dict[str, Any]:
    """R10: the chosen nodes in the order of their rows."""
    for noted in (call.noted_scores, call.noted_depths, call.noted_tokens):
        noted[:] = 0
    call.noted_parents[:] = -1
    for b in range(len(call.selected)):
        chosen = np.nonzero(call.selected[b])[0].tolist()
        for row, node in enumerate(chosen[: call.noted_scores.shape[1]]):
            call.noted_scores[b, row] = call.cumu_scores[b, node]
            call.noted_depths[b, row] = call.cumu_deltas[b, node]
            call.noted_tokens[b, row] = call.cumu_tokens[b, node]
            if node:
                call.noted_parents[b, row] = chosen.index(call.prev_indexs[b, node])
    return {}
