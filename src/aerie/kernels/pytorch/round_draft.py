"""PyTorch draft inside a round: R5 paths, R6 best children, R7 a whole layer."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MASK_WORDS
from aerie.kernels.cards.growth import DraftLayer
from aerie.kernels.cards.round_draft import BestChildren, DraftPaths
from aerie.kernels.layer import grown_layer
from aerie.kernels.pytorch.growth import STEPS, check_update_cumu_draft_state

BITS_PER_WORD = 32


@takes_call
def mark_draft_paths(call: DraftPaths) -> dict[str, Tensor]:
    """R5: the parent's bits and the node's own."""
    device = call.frontier_bits.device
    column = call.fed_count + torch.arange(call.node_ids.shape[1], device=device)
    word = torch.arange(MASK_WORDS, device=device)
    own = (1 << (column % BITS_PER_WORD))[:, None] * (column[:, None] // BITS_PER_WORD == word)
    # Bit 31 is the sign of an int32: the same pattern, two's complement.
    signed = torch.where(own >= 1 << 31, own - (1 << 32), own).int()
    # A refused request has no nodes; its bits do not matter, as long as they are valid.
    slot = (call.node_ids - call.first_id) // call.top_k
    slot.clamp_(0, call.frontier_bits.shape[1] - 1)
    seen = call.frontier_bits.gather(1, slot[:, :, None].expand(-1, -1, MASK_WORDS))
    return {"node_bits": seen | signed}


@takes_call
def best_draft_children(call: BestChildren) -> dict[str, Tensor]:
    """R6: the most probable tokens of every row."""
    values = call.logits.float()
    values = torch.where(values.isfinite(), values, -torch.inf)
    best = best_ids(values, call.node_top_k)
    exact = values.double()
    peak = exact.amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
    mass = (exact - peak).exp().sum(dim=1, keepdim=True)
    # Without a finite logit the sum is 0, and so is every part of it.
    raised = (exact.gather(1, best) - peak).exp() / mass.clamp_min(torch.finfo(torch.float64).tiny)
    return {
        "topk_probas": raised.float(),
        "topk_tokens": best if call.hot_token_id is None else call.hot_token_id[best],
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


@takes_call
def check_grow_draft_layer(call: DraftLayer) -> dict[str, Tensor]:
    """R7, before anything is written: K2's checks; a layer that sorts for itself has no others."""
    return check_update_cumu_draft_state(
        topk_tokens=call.topk_tokens,
        sort_layer_indices=torch.zeros_like(call.frontier_indexs),
        frontier_indexs=call.frontier_indexs,
        cumu_count=call.cumu_count,
    )


@takes_call
def grow_draft_layer(call: DraftLayer) -> dict[str, Tensor]:
    """R7: K1, K2 and K3 one after the other."""
    outputs = grown_layer(call, *STEPS)
    n_gains, device = outputs["output_scores"].shape[1] + 1, call.topk_probas.device
    outputs.setdefault("G", torch.zeros(n_gains, device=device))
    is_refused = (call.status != 0)[:, None]
    outputs["node_ids"].masked_fill_(is_refused, -1)
    outputs["output_hidden"].masked_fill_(is_refused[:, :, None], 0)
    return outputs
