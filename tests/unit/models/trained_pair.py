"""A tiny target and a head fitted to it in seconds, so that agreement means something; shared.

The head is trained in plain PyTorch on text the target writes itself, from captured states at
BOUNDARIES, with the residual taken before the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from aerie.attention import pytorch
from aerie.models.decoder import Decoder
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.probe_text import whole_texts, write_freely
from tests.unit.models import pairs

BOUNDARIES = (2, 4, 6)
N_STEPS = 30  # agrees on about 0.87; more steps and it knows the text by heart, however it is read


@dataclass
class TrainedPair:
    """A target and the file tensors of a head that drafts for it."""

    directory: Path
    target: Decoder
    tensors: dict[str, Tensor]

    def write_head(self, directory: Path, **fields: Any) -> Path:
        """Save the head with whatever its config claims."""
        config = pairs.base_config(draft_vocab_size=pairs.VOCAB, **fields)
        pairs.save(directory, config, self.tensors)
        return directory


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, pairs.EPS)


def rotate(x: Tensor) -> Tensor:
    """[texts, heads, positions, dim]."""
    pair = torch.arange(pairs.HEAD_DIM // 2) * 2 / pairs.HEAD_DIM
    angles = torch.arange(x.shape[2])[:, None] * 10000.0**-pair
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def head_logits(w: dict[str, Tensor], features: Tensor, embedded: Tensor) -> Tensor:
    """[texts, positions, captures * width] and the next tokens' embeddings to logits."""
    x = features @ w["fc"].T
    joined = torch.cat([norm(embedded, w["0.embed_norm"]), norm(x, w["0.hidden_norm"])], dim=-1)
    q, k, v = (
        (joined @ w[f"0.{name}"].T).unflatten(-1, (-1, pairs.HEAD_DIM)).transpose(1, 2)
        for name in "qkv"
    )
    attended = functional.scaled_dot_product_attention(
        rotate(q), rotate(k), v, is_causal=True, enable_gqa=True
    )
    y = x + attended.transpose(1, 2).flatten(2) @ w["0.o"].T
    inner = norm(y, w["0.post_norm"])
    gated = functional.silu(inner @ w["0.gate"].T) * (inner @ w["0.up"].T)
    y = y + gated @ w["0.down"].T
    return norm(y, w["norm"]) @ w["lm_head"].T


def train(
    directory: Path, n_layers: int = pairs.LAYERS, boundaries: tuple[int, ...] = BOUNDARIES
) -> TrainedPair:
    """Write the target, fit the head: less than a second on one core."""
    pairs.write_target(directory / "target", num_hidden_layers=n_layers)
    target = load_decoder(directory / "target", pytorch.prepare, LoadOptions())
    texts = torch.stack(write_freely(target).texts)  # [texts, tokens]
    rows = whole_texts(tuple(texts))
    out = target.forward(
        rows, target.allocate_pool(rows.n_rows + 1), torch.arange(rows.n_rows), boundaries
    )
    features = out.taps.flatten(1).view(*texts.shape, -1)[:, :-1].clone()
    labels = out.logits.argmax(-1).view(texts.shape)[:, 1:].clone()
    embedded = target.embedding[texts[:, 1:]]
    weights = pairs.head_weights(draft_vocab=pairs.VOCAB)()
    trained = {name: weights[name].requires_grad_() for name in weights if name != "embed"}
    optimiser = torch.optim.AdamW(trained.values(), lr=5e-3, weight_decay=0.01)
    for _ in range(N_STEPS):
        loss = functional.cross_entropy(
            head_logits(trained, features, embedded).flatten(0, 1), labels.flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    case = pairs.CASES["official"]
    tensors = {pairs.stored_name(case, name): t.detach() for name, t in trained.items()}
    return TrainedPair(directory, target, tensors)
