"""Ragged and tree batches over handmade checkpoints; shared, not a test itself."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from aerie.attention.rows import Rows
from aerie.models.decoder import Decoder
from tests.unit.attention.trees import (
    causal_batch,
    join_rows,
    random_parents,
    scattered_slots,
    tree_batch,
)
from tests.unit.models.handmade import CONFIG, EXPERTS

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": CONFIG,
    "qwen3": CONFIG | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "gpt_oss": CONFIG | EXPERTS,
}


def batches() -> list[Rows]:
    """A ragged prefill, then trees beside a chunk, over one pool."""
    generator = torch.Generator().manual_seed(0)
    slots = scattered_slots([60, 7, 30], 200, 1)
    texts = [torch.randint(0, 61, (n,), generator=generator) for n in (40, 1, 20)]
    prefill = causal_batch(texts, [own[: len(t)] for own, t in zip(slots, texts, strict=True)])
    parents = [random_parents(20, generator), random_parents(6, generator)]
    nodes = [torch.randint(0, 61, (len(tree),), generator=generator) for tree in parents]
    chunk = torch.randint(0, 61, (10,), generator=generator)
    trees = tree_batch(nodes, parents, slots[:2])
    return [prefill, join_rows([trees, causal_batch([chunk], slots[2:])])]


def run(decoder: Decoder, parts: list[Rows]) -> Tensor:
    pool = decoder.allocate_pool(200)
    wanted = [torch.arange(part.n_rows, device=part.tokens.device) for part in parts]
    outputs = [decoder.forward(p, pool, w, (0, 2)) for p, w in zip(parts, wanted, strict=True)]
    return torch.cat([out.logits for out in outputs]).cpu()


def to_gpu(rows: Rows) -> Rows:
    moved = {
        item.name: value.cuda()
        for item in fields(Rows)
        if isinstance(value := getattr(rows, item.name), torch.Tensor)
    }
    return replace(rows, **moved)
