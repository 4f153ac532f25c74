"""Text a target writes behind prompts, greedy or sampled: all prompts in one ragged batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.attention.rows import Bounds, Rows, causal_rows, ragged
from aerie.models.decoder import Decoder


@dataclass(frozen=True)
class Writing:
    """How much is written, and how tokens are chosen; a temperature of 0 is greedy."""

    n_new: int
    temperature: float = 0.0
    seed: int = 0


def continue_texts(target: Decoder, prompts: Sequence[Tensor], writing: Writing) -> list[Tensor]:
    """Prompts [tokens] i64, none of them empty, each with `n_new` more tokens behind it."""
    device = target.embedding.device
    texts = [prompt.to(device) for prompt in prompts]
    regions = _regions([text.shape[0] + writing.n_new for text in texts], device)
    pool = target.allocate_pool(1 + sum(region.shape[0] for region in regions))
    noise = torch.Generator().manual_seed(writing.seed)
    fresh = texts
    for _ in range(writing.n_new):
        rows = _rows(fresh, texts, regions)
        last = rows.qo_indptr[1:].long() - 1
        chosen = _choose(target.forward(rows, pool, last).logits, writing.temperature, noise)
        fresh = list(chosen[:, None])
        texts = [torch.cat(parts) for parts in zip(texts, fresh, strict=True)]
    return texts


def _choose(logits: Tensor, temperature: float, noise: torch.Generator) -> Tensor:
    if not temperature:
        return logits.argmax(-1)
    uniform = torch.rand(logits.shape, generator=noise).to(logits.device)
    # The largest of logit / T - log(-log u) is a sample from their softmax (Gumbel).
    return (logits / temperature - (-uniform.log()).log()).argmax(-1)


def _regions(lengths: Sequence[int], device: torch.device) -> list[Tensor]:
    """Consecutive slots for each text, from slot 1 on."""
    slots = torch.arange(1, 1 + sum(lengths), dtype=torch.int32, device=device)
    return list(slots.split(list(lengths)))


def _rows(fresh: Sequence[Tensor], texts: Sequence[Tensor], regions: Sequence[Tensor]) -> Rows:
    tokens, qo_indptr = ragged(fresh)
    used = [region[: text.shape[0]] for region, text in zip(regions, texts, strict=True)]
    slots, kv_indptr = ragged(used)
    bounds = Bounds(max(map(len, fresh)), max(map(len, texts)))
    return causal_rows(tokens, qo_indptr, kv_indptr, slots, bounds)
