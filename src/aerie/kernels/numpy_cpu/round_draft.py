"""NumPy draft inside a round: R5 paths, R6 best children, R7 a whole layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.growth import DraftLayer
from aerie.kernels.cards.round_draft import BestChildren, DraftPaths
from aerie.kernels.layer import checked_layer, numpy_layer
from aerie.kernels.numpy_cpu.growth import STEPS, check_update_cumu_draft_state
from aerie.kernels.numpy_cpu.layout import OWN_BITS
from aerie.kernels.numpy_types import Bools, Floats, Ints, as_float32

# Peaks whose row has exponentials, and a sum of 2^18 of them, well inside float32.
LEAST_PEAK, MOST_PEAK = -60.0, 70.0


@takes_call
def mark_draft_paths(call: DraftPaths) -> dict[str, Any]:
    """R5: the parent's bits and the node's own."""
    (batch, width), n_nodes = call.frontier_bits.shape[:2], call.node_ids.shape[1]
    # Not `clip`: it is Python around these two, and half of this kernel's time.
    slot = np.minimum(np.maximum((call.node_ids - call.first_id) // call.top_k, 0), width - 1)
    bits = call.frontier_bits[np.arange(batch)[:, None], slot]
    bits |= OWN_BITS[call.fed_count : call.fed_count + n_nodes].view(np.int32)
    return {"node_bits": bits}


@takes_call
def best_draft_children(call: BestChildren) -> dict[str, Any]:
    """R6: the most probable tokens of every row."""
    values = as_float32(call.logits)
    best, found = _largest(values, call.node_top_k)
    # NaN and infinity come first among the largest, so that those alone tell whether all is finite.
    if not np.isfinite(found[:1]).all():
        values = as_float32(call.logits)
        values[~np.isfinite(values)] = -np.inf
        best, found = _largest(values, call.node_top_k)
    peak, best, found = found[0], best.T.copy(), found.T.copy()
    is_short = found[:, -1] == -np.inf
    if is_short.any():
        _complete(best, found, is_short, values.shape[1])
        peak = np.where(np.isfinite(peak), peak, np.float32(0))
    # The best, which are the largest part of the sum, in float64. Differences from the peak would
    # round: they are only taken where the exponential itself would pass float32.
    exact = found.astype(np.float64)
    if len(peak) and (peak.min() < LEAST_PEAK or peak.max() > MOST_PEAK):
        raised = np.exp(exact - peak[:, None])
        others = np.exp(values.astype(np.float64) - peak[:, None])
    else:
        raised = np.exp(exact)
        others = np.exp(values, out=values)
    mass = np.add.reduce(others, axis=1, dtype=np.float64) + np.add.reduce(raised, axis=1)
    mass[mass == 0] = 1  # no finite logit: every part is 0
    return {
        "topk_probas": (raised / mass[:, None]).astype(np.float32),
        "topk_tokens": best if call.hot_token_id is None else call.hot_token_id.take(best),
    }


def _largest(values_out: Floats, n_largest: int) -> tuple[Ints, Floats]:
    """Ids and values of the largest of each row [k, R], which become -inf.

    A handful of passes that look for the largest are quicker than any selection here.
    """
    n_rows, size = values_out.shape
    ids, found = np.empty((n_largest, n_rows), np.int64), np.empty((n_largest, n_rows), np.float32)
    flat, first = values_out.reshape(-1), np.arange(0, n_rows * size, size)
    for rank in range(n_largest):
        values_out.argmax(axis=1, out=ids[rank])
        place = ids[rank] + first
        flat.take(place, out=found[rank])
        flat[place] = -np.inf
    return ids, found


def _complete(best_out: Ints, found: Floats, is_short: Bools, n_tokens: int) -> None:
    """Rows with fewer finite logits than children go on with the lowest ids that are not among
    them."""
    for row in is_short.nonzero()[0].tolist():
        n_found = int(np.count_nonzero(found[row] > -np.inf))
        taken = set(best_out[row, :n_found].tolist())
        rest = (token for token in range(n_tokens) if token not in taken)
        for rank in range(n_found, best_out.shape[1]):
            best_out[row, rank] = next(rest)


@takes_call
def check_grow_draft_layer(call: DraftLayer) -> dict[str, Any]:
    """R7, before anything is written: K2's checks; a layer that sorts for itself has no others."""
    return checked_layer(call, check_update_cumu_draft_state)


@takes_call
def grow_draft_layer(call: DraftLayer) -> dict[str, Any]:
    """R7: K1, K2 and K3 one after the other."""
    return numpy_layer(call, *STEPS)
