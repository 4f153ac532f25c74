"""Prints, as one JSON line, how far half-precision runs are from transformers; not a test itself.

Run in its own process: some virtual machines announce AMX and then trap on it, so the caller may
have to limit oneDNN (ONEDNN_MAX_CPU_ISA) before torch is imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import tiny

N_TOKENS = 120
NEAR = 0.98  # cosine of a row that took the same way


def differences(got: Tensor, want: Tensor) -> dict[str, float]:
    """Absolute differences, the worst cosine, the share of near rows, agreeing first choices."""
    difference = (got - want).abs()
    cosine = torch.cosine_similarity(got, want, dim=-1)
    return {
        "max_abs": difference.max().item(),
        "mean_abs": difference.mean().item(),
        "cosine": cosine.min().item(),
        "near": (cosine >= NEAR).float().mean().item(),
        "top1": (got.argmax(-1) == want.argmax(-1)).float().mean().item(),
    }


def report(parent: Path, dtype: torch.dtype) -> dict[str, dict[str, dict[str, float]]]:
    """Both engines in `dtype` against transformers in float32, for every tiny checkpoint."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, tiny.VOCAB, (N_TOKENS,), generator=generator)
    rows = causal_batch([tokens], packed_slots([N_TOKENS]))
    out = {}
    for name in sorted(tiny.RECIPES):
        directory = tiny.build(name, parent, dtype=dtype)
        decoder = load_decoder(directory, pytorch.prepare, LoadOptions(dtype=dtype))
        pool = decoder.allocate_pool(N_TOKENS + 1)
        ours = decoder.forward(rows, pool, torch.arange(N_TOKENS)).logits
        with torch.no_grad():
            exact = tiny.open_oracle(directory)(tokens[None]).logits[0]
            theirs = tiny.open_oracle(directory, dtype)(tokens[None]).logits[0].float()
        out[name] = {"ours": differences(ours, exact), "theirs": differences(theirs, exact)}
    return out


if __name__ == "__main__":
    folder, dtype_name = sys.argv[1:]
    print(json.dumps(report(Path(folder), getattr(torch, dtype_name))))
