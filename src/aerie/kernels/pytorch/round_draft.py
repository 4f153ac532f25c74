"""PyTorch draft inside a round: R5 paths, R6 best children, R7 a whole layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aerie.kernels.pytorch.growth import (
    calculate_work_deltas,
    check_cumu_draft_state,
    draft_tree_layer_score_index_gen_op,
    update_cumu_draft_state,
)

MASK_WORDS, BITS_PER_WORD = 4, 32


def mark_draft_paths(
    *, frontier_bits: Tensor, node_ids: Tensor, first_id: int, top_k: int, fed_count: int
) -> dict[str, Tensor]:
    """R5: the parent's bits and the node's own."""
    device = frontier_bits.device
    column = fed_count + torch.arange(node_ids.shape[1], device=device)
    word = torch.arange(MASK_WORDS, device=device)
    own = (1 << (column % BITS_PER_WORD))[:, None] * (column[:, None] // BITS_PER_WORD == word)
    # Bit 31 is the sign of an int32: the same pattern, two's complement.
    signed = torch.where(own >= 1 << 31, own - (1 << 32), own).int()
    # A refused request has no nodes; its bits do not matter, as long as they are valid.
    slot = ((node_ids - first_id) // top_k).clamp_(0, frontier_bits.shape[1] - 1)
    seen = frontier_bits.gather(1, slot[:, :, None].expand(-1, -1, MASK_WORDS))
    return {"node_bits": seen | signed}


def best_draft_children(
    *, logits: Tensor, node_top_k: int, hot_token_id: Tensor | None = None
) -> dict[str, Tensor]:
    """R6: the most probable tokens of every row."""
    values = logits.float()
    values = torch.where(values.isfinite(), values, -torch.inf)
    best = best_ids(values, node_top_k)
    exact = values.double()
    peak = exact.amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
    mass = (exact - peak).exp().sum(dim=1, keepdim=True)
    # Without a finite logit the sum is 0, and so is every part of it.
    raised = (exact.gather(1, best) - peak).exp() / mass.clamp_min(torch.finfo(torch.float64).tiny)
    return {
        "topk_probas": raised.float(),
        "topk_tokens": best if hot_token_id is None else hot_token_id[best],
    }


def best_ids(values: Tensor, count: int) -> Tensor:
    """Ids of the largest of each row of float32 values, the lower id first on ties. [R, count]"""
    # Value and id as one integer that grows with the value and falls with the id: topk keeps no
    # order among equals. Adding 0 makes one number of both zeros.
    bits = (values + 0.0).view(torch.int32)
    # As sign and magnitude: of negative numbers the larger bits are the smaller number.
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long().mul_(1 << 32)
    keys -= torch.arange(values.shape[1], device=values.device)
    return (-keys.topk(count, dim=1).values) & 0xFFFFFFFF


def check_draft_layer(
    *, topk_tokens: Tensor, frontier_indexs: Tensor, cumu_count: int, **_: Any
) -> dict[str, Tensor]:
    """R7, before anything is written: K2's checks; a layer that sorts for itself has no others."""
    return check_cumu_draft_state(
        topk_tokens=topk_tokens,
        sort_layer_indices=torch.zeros_like(frontier_indexs),
        frontier_indexs=frontier_indexs,
        cumu_count=cumu_count,
    )


def grow_draft_layer(
    *,
    topk_probas: Tensor,
    topk_tokens: Tensor,
    last_layer_scores: Tensor,
    input_hidden: Tensor,
    cumu_count: int,
    verify_num: int,
    status: Tensor,
    weigh: bool = False,
    **store: Any,
) -> dict[str, Tensor]:
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
    gains = torch.zeros(top_k + 1, device=topk_probas.device)
    if weigh:
        gains = calculate_work_deltas(
            work_scores=state["work_scores"], node_top_k=top_k, verify_num=verify_num
        )["G"]
    refused = (status != 0)[:, None]
    return {
        "node_ids": layer["cache_topk_indices"].masked_fill(refused, -1),
        "output_scores": state["output_scores"],
        "output_tokens": state["output_tokens"],
        "output_hidden": layer["output_hidden"].masked_fill(refused[:, :, None], 0),
        "output_tree_mask": state["output_tree_mask"],
        "G": gains,
    }
