"""Reference of a round's choice, R8 to R10: which nodes are verified, and what is noted of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.cards.axes import KNOTS

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.int32]


def choose_best_nodes(
    *, cumu_scores: Floats, selected: Bools, n_chosen: Counts, verify_num: int
) -> dict[str, Any]:
    """R8: the best nodes of each request."""
    for b, scores in enumerate(cumu_scores):
        selected[b] = False
        selected[b, _best(scores, verify_num)] = True
        n_chosen[b] = selected[b].sum()
    return {}


def _best(scores: Floats, n_nodes: int) -> list[int]:
    """The best nodes by (score, id), never one without a score."""
    order = sorted(range(len(scores)), key=lambda node: (-scores[node], node))
    return [node for node in order[:n_nodes] if scores[node] > 0]


def choose_planned_nodes(
    *,
    cumu_scores: Floats,
    cumu_deltas: Ints,
    prev_indexs: Ints,
    row_sizes: Ints,
    numbers: Doubles,
    selected: Bools,
    n_chosen: Counts,
    deepest: int,
    verify_num: int,
) -> dict[str, Any]:
    """R9: the forest that is worth most at the offer's rate; `deepest` is not needed here."""
    rate, seconds = numbers[0], numbers[1 : 1 + len(row_sizes)]
    corrections = numbers[1 + len(row_sizes) :].reshape(-1, KNOTS)
    weights = np.zeros_like(cumu_scores)
    for b, scores in enumerate(cumu_scores):
        own = _weights(scores, cumu_deltas[b], prev_indexs[b], corrections)
        kept = _best(own, verify_num)
        weights[b, kept] = own[kept]
    batch, n_nodes = weights.shape
    order = sorted(
        ((b, node) for b in range(batch) for node in range(n_nodes)),
        key=lambda place: (place[1] != 0, -weights[place] if place[1] else 0.0, place),
    )
    n_usable = int((weights > 0).sum())
    best_value, n_rows = -np.inf, min(int(row_sizes[0]), n_usable)
    for size, cost in zip(row_sizes.tolist(), seconds.tolist(), strict=True):
        forest = order[: min(size, n_usable)]
        with np.errstate(invalid="ignore"):  # no rate, and a size that is not on offer
            value = sum(float(weights[place]) for place in forest) - rate * cost
        if value > best_value:
            best_value, n_rows = value, len(forest)
    selected[:] = False
    for place in order[:n_rows]:
        selected[place] = True
    n_chosen[:] = selected.sum(axis=1)
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


def note_chosen_nodes(
    *,
    cumu_scores: Floats,
    cumu_deltas: Ints,
    cumu_tokens: Ints,
    prev_indexs: Ints,
    selected: Bools,
    noted_scores: Floats,
    noted_depths: Counts,
    noted_tokens: Counts,
    noted_parents: Counts,
) -> dict[str, Any]:
    """R10: the chosen nodes in the order of their rows."""
    for noted in (noted_scores, noted_depths, noted_tokens):
        noted[:] = 0
    noted_parents[:] = -1
    for b in range(len(selected)):
        chosen = np.nonzero(selected[b])[0].tolist()
        for row, node in enumerate(chosen[: noted_scores.shape[1]]):
            noted_scores[b, row] = cumu_scores[b, node]
            noted_depths[b, row] = cumu_deltas[b, node]
            noted_tokens[b, row] = cumu_tokens[b, node]
            if node:
                noted_parents[b, row] = chosen.index(prev_indexs[b, node])
    return {}
