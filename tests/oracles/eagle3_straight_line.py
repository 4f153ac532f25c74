"""EAGLE-3 in a straight line: one sequence, the whole attention matrix, no cache, float64.

Written from the description of the algorithm and from nothing else. Weights come in plain names:
fc, fc_bias, input_norm, chunk_norm_<k>, norm, lm_head, embed, and per layer `<k>.<name>` with
name in embed_norm, hidden_norm, q, k, v, o, q_bias, ..., q_norm, k_norm, post_norm, gate, up,
down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """Sizes and conventions of one head."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_layers: int = 1
    eps: float = 1e-5
    theta: float = 10000.0
    llama3: tuple[float, float, float, int] | None = None  # factor, low, high, original length
    norm_before_residual: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0
    window: int | None = None
    n_sinks: int = 0


Weights = Mapping[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    out = x @ weights[name].T
    return out + weights[f"{name}_bias"] if f"{name}_bias" in weights else out


def frequencies(plan: Plan) -> list[float]:
    out = []
    for pair in range(plan.head_dim // 2):
        frequency = plan.theta ** (-2 * pair / plan.head_dim)
        if plan.llama3 is not None:
            factor, low, high, original = plan.llama3
            wavelength = 2 * math.pi / frequency
            if wavelength > original / low:
                frequency /= factor
            elif wavelength > original / high:
                smooth = (original / wavelength - low) / (high - low)
                frequency = (1 - smooth) * frequency / factor + smooth * frequency
        out.append(frequency)
    return out


def rotate(x: Tensor, positions: Tensor, plan: Plan) -> Tensor:
    """[n, heads, dim]: dimension i turns together with i + dim / 2."""
    angles = positions.double()[:, None] * torch.tensor(frequencies(plan), dtype=torch.float64)
    cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
    half = plan.head_dim // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def attention(x: Tensor, layer: int, weights: Weights, plan: Plan) -> Tensor:
    n = x.shape[0]
    positions = torch.arange(n)
    q = linear(x, weights, f"{layer}.q").view(n, plan.n_heads, plan.head_dim)
    k = linear(x, weights, f"{layer}.k").view(n, plan.n_kv_heads, plan.head_dim)
    v = linear(x, weights, f"{layer}.v").view(n, plan.n_kv_heads, plan.head_dim)
    if f"{layer}.q_norm" in weights:
        q = rms_norm(q, weights[f"{layer}.q_norm"], plan.eps)
        k = rms_norm(k, weights[f"{layer}.k_norm"], plan.eps)
    q, k = rotate(q, positions, plan), rotate(k, positions, plan)
    outs = []
    for head in range(plan.n_heads):
        source = head // (plan.n_heads // plan.n_kv_heads)
        scores = q[:, head] @ k[:, source].T / math.sqrt(plan.head_dim)
        for i in range(n):
            for j in range(n):
                is_far = plan.window is not None and j <= i - plan.window and j >= plan.n_sinks
                if j > i or is_far:
                    scores[i, j] = -math.inf
        outs.append(scores.softmax(-1) @ v[:, source])
    return linear(torch.cat(outs, dim=-1), weights, f"{layer}.o")


def mlp(x: Tensor, layer: int, weights: Weights) -> Tensor:
    gate = linear(x, weights, f"{layer}.gate")
    up = linear(x, weights, f"{layer}.up")
    return linear(gate * gate.sigmoid() * up, weights, f"{layer}.down")


def mix(captured: list[Tensor], weights: Weights, eps: float) -> Tensor:
    """Captured states, low to high, each [n, target width], to the head's width."""
    if "chunk_norm_0" in weights:
        captured = [rms_norm(c, weights[f"chunk_norm_{k}"], eps) for k, c in enumerate(captured)]
    joined = torch.cat(captured, dim=-1)
    if "input_norm" in weights:
        joined = rms_norm(joined, weights["input_norm"], eps)
    return linear(joined, weights, "fc") if "fc" in weights else joined


def run(x: Tensor, next_tokens: Tensor, weights: Weights, plan: Plan) -> dict[str, Tensor]:
    """All positions of one sequence: x [n, width], the token after each position [n]."""
    stages = {"fc_out": x}
    e = rms_norm(weights["embed"][next_tokens], weights["0.embed_norm"], plan.eps)
    g = rms_norm(x, weights["0.hidden_norm"], plan.eps)
    residual = g if plan.norm_before_residual else x
    stages["attn_out"] = attention(torch.cat([e, g], dim=-1), 0, weights, plan)
    y = residual + stages["attn_out"]
    stages["ffn_out"] = mlp(rms_norm(y, weights["0.post_norm"], plan.eps), 0, weights)
    y = y + stages["ffn_out"]
    for layer in range(1, plan.n_layers):
        normed = rms_norm(y, weights[f"{layer}.hidden_norm"], plan.eps)
        y = y + attention(normed, layer, weights, plan)
        y = y + mlp(rms_norm(y, weights[f"{layer}.post_norm"], plan.eps), layer, weights)
        stages[f"layers.{layer}"] = y
    normed = rms_norm(y, weights["norm"], plan.eps)
    stages["pre_head_hidden"] = normed
    stages["logits"] = normed @ weights["lm_head"].T * plan.logit_scale
    stages["next_hidden"] = normed if plan.norm_output else y
    return stages


def draft(
    captured: list[Tensor], next_tokens: Tensor, drafted: Tensor, weights: Weights, plan: Plan
) -> list[dict[str, Tensor]]:
    """Stages of the prefix [n], then of each drafted token [1] that continues it.

    Position n + k reads the hidden state position n + k - 1 returned and the k-th drafted token.
    """
    wide = {name: tensor.double() for name, tensor in weights.items()}
    x = mix([c.double() for c in captured], wide, plan.eps)
    out = [run(x, next_tokens, wide, plan)]
    tokens = next_tokens
    for token in drafted:
        x = torch.cat([x, out[-1]["next_hidden"][-1:]])
        tokens = torch.cat([tokens, token[None]])
        whole = run(x, tokens, wide, plan)
        out.append({name: stage[-1:] for name, stage in whole.items()})
    return out
