"""Reference of the draft inside a round: R5 paths, R6 best children, R7 a whole layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.reference.growth import (
    calculate_work_deltas,
    check_cumu_draft_state,
    draft_tree_layer_score_index_gen_op,
    update_cumu_draft_state,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Words = NDArray[np.int32]


def mark_draft_paths(
    *, frontier_bits: Words, node_ids: Ints, first_id: int, top_k: int, fed_count: int
) -> dict[str, Any]:
    """R5: the parent's bits and the node's own."""
    (batch, width), n_nodes = frontier_bits.shape[:2], node_ids.shape[1]
    bits = np.zeros((batch, n_nodes, 4), np.uint32)
    for b in range(batch):
        for i, node in enumerate(node_ids[b]):
            slot = min(max((int(node) - first_id) // top_k, 0), width - 1)
            bits[b, i] = frontier_bits[b, slot].astype(np.uint32)
            column = fed_count + i
            bits[b, i, column // 32] |= np.uint32(1 << (column % 32))
    return {"node_bits": bits.view(np.int32)}


def best_draft_children(
    *, logits: NDArray[Any], node_top_k: int, hot_token_id: Ints | None = None
) -> dict[str, Any]:
    """R6: the most probable tokens of every row."""
    shape = (len(logits), node_top_k)
    probas, tokens = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    for r, row in enumerate(logits):
        exact = as_float32(row).astype(np.float64)
        exact[~np.isfinite(exact)] = -np.inf
        best = np.argsort(-exact, kind="stable")[:node_top_k]
        if exact[best[0]] > -np.inf:
            raised = np.exp(exact - exact[best[0]])
            probas[r] = (raised[best] / raised.sum()).astype(np.float32)
        tokens[r] = best if hot_token_id is None else hot_token_id[best]
    return {"topk_probas": probas, "topk_tokens": tokens}


def as_float32(values: NDArray[Any]) -> Floats:
    """Logits of any dtype; bfloat16 comes as its bit patterns, the upper half of a float32's."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def check_draft_layer(
    *, topk_tokens: Ints, frontier_indexs: Ints, cumu_count: int, **_: Any
) -> dict[str, Any]:
    """R7, before anything is written: K2's checks; a layer that sorts for itself has no others."""
    return check_cumu_draft_state(
        topk_tokens=topk_tokens,
        sort_layer_indices=np.zeros((len(topk_tokens), 0), np.int64),
        frontier_indexs=frontier_indexs,
        cumu_count=cumu_count,
    )


def grow_draft_layer(
    *,
    topk_probas: Floats,
    topk_tokens: Ints,
    last_layer_scores: Floats,
    input_hidden: NDArray[Any],
    cumu_count: int,
    verify_num: int,
    status: Words,
    weigh: bool = False,
    **store: Any,
) -> dict[str, Any]:
    """R7: K1, K2 and K3 one after the other; `store` holds K2's other arguments."""
    layer = draft_tree_layer_score_index_gen_op(
        topk_probas=topk_probas,
        topk_tokens=topk_tokens,
        last_layer_scores=last_layer_scores,
        input_hidden=input_hidden,
        cumu_count=cumu_count,
    )
    state = update_cumu_draft_state(
        **store,
        curr_layer_scores=layer["curr_layer_scores"],
        topk_tokens=layer["mapped_tokens"],
        sort_layer_scores=layer["sort_layer_scores"],
        sort_layer_indices=layer["sort_layer_indices"],
        cumu_count=cumu_count,
        verify_num=verify_num,
        status=status,
    )
    top_k = state["output_scores"].shape[1]
    gains = np.zeros(top_k + 1, np.float32)
    if weigh:
        gains = calculate_work_deltas(
            work_scores=state["work_scores"], node_top_k=top_k, verify_num=verify_num
        )["G"]
    layer["cache_topk_indices"][status != 0] = -1
    layer["output_hidden"][status != 0] = 0
    return {
        "node_ids": layer["cache_topk_indices"],
        "output_scores": state["output_scores"],
        "output_tokens": state["output_tokens"],
        "output_hidden": layer["output_hidden"],
        "output_tree_mask": state["output_tree_mask"],
        "G": gains,
    }
