"""Reference of the draft inside a round: R5 paths, R6 best children, R7 a whole layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.growth import DraftLayer
from aerie.kernels.cards.round_draft import BestChildren, DraftPaths
from aerie.kernels.layer import checked_layer, numpy_layer
from aerie.kernels.numpy_types import widened
from aerie.kernels.reference.growth import STEPS, check_update_cumu_draft_state


@takes_call
def mark_draft_paths(call: DraftPaths) -> dict[str, Any]:
    """R5: the parent's bits and the node's own."""
    (batch, width), n_nodes = call.frontier_bits.shape[:2], call.node_ids.shape[1]
    bits = np.zeros((batch, n_nodes, 4), np.uint32)
    for b in range(batch):
        for i, node in enumerate(call.node_ids[b]):
            slot = min(max((int(node) - call.first_id) // call.top_k, 0), width - 1)
            bits[b, i] = call.frontier_bits[b, slot].astype(np.uint32)
            column = call.fed_count + i
            bits[b, i, column // 32] |= np.uint32(1 << (column % 32))
    return {"node_bits": bits.view(np.int32)}


@takes_call
def best_draft_children(call: BestChildren) -> dict[str, Any]:
    """R6: the most probable tokens of every row."""
    shape = (len(call.logits), call.node_top_k)
    probas, tokens = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    for r, row in enumerate(call.logits):
        exact = widened(row)
        exact[~np.isfinite(exact)] = -np.inf
        best = np.argsort(-exact, kind="stable")[: call.node_top_k]
        if exact[best[0]] > -np.inf:
            raised = np.exp(exact - exact[best[0]])
            probas[r] = (raised[best] / raised.sum()).astype(np.float32)
        tokens[r] = best if call.hot_token_id is None else call.hot_token_id[best]
    return {"topk_probas": probas, "topk_tokens": tokens}


@takes_call
def check_grow_draft_layer(call: DraftLayer) -> dict[str, Any]:
    """R7, before anything is written: K2's checks; a layer that sorts for itself has no others."""
    return checked_layer(call, check_update_cumu_draft_state)


@takes_call
def grow_draft_layer(call: DraftLayer) -> dict[str, Any]:
    """R7: K1, K2 and K3 one after the other."""
    return numpy_layer(call, *STEPS)
