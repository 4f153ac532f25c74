"""A Llama-like decoder in a straight line: one sequence, no cache, in the dtype of its weights.

Weights come in the plain names of `eagle3_straight_line`: embed, norm, lm_head, and per layer
`<k>.<name>` with name in attention_norm, q, k, v, o, post_norm, gate, up, down and biases.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tests.oracles.eagle3_straight_line import Plan, attention, mlp, rms_norm


def states(tokens: Tensor, weights: Mapping[str, Tensor], plan: Plan) -> list[Tensor]:
    """The residual stream at every boundary, embeddings first: each [n, width]."""
    x = weights["embed"][tokens]
    out = [x]
    for layer in range(plan.n_layers):
        normed = rms_norm(x, weights[f"{layer}.attention_norm"], plan.eps)
        x = x + attention(normed, layer, weights, plan)
        x = x + mlp(rms_norm(x, weights[f"{layer}.post_norm"], plan.eps), layer, weights)
        out.append(x)
    return out


def logits(state: Tensor, weights: Mapping[str, Tensor], plan: Plan) -> Tensor:
    """Logits [n, vocabulary] of what leaves the last layer."""
    normed: Tensor = rms_norm(state, weights["norm"], plan.eps)
    return torch.matmul(normed, weights["lm_head"].T)
