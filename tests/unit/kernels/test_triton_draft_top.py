"""The draft's best children against a float64 softmax and a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels import load
from aerie.kernels.arrays import ulp_distance
from tests.unit.kernels.triton_device import DEVICE

ULPS = 1
LARGE = pytest.param(3, 128_256, 10, marks=pytest.mark.slow)


def draft_top(
    logits: torch.Tensor, top_k: int, token_map: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    best = load("triton", DEVICE, data_errors="status")["best_draft_children"]
    found = best(logits=logits, node_top_k=top_k, hot_token_id=token_map)
    return found.topk_probas, found.topk_tokens


def expected(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    wide = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ids = torch.sort(wide, dim=1, descending=True, stable=True).indices[:, :top_k]
    return torch.softmax(wide, dim=1).gather(1, ids).float(), ids


@pytest.mark.parametrize(
    ("rows", "vocab", "top_k"),
    [(1, 7, 5), (3, 50, 8), (2, 2049, 3), (1, 32_000, 8), LARGE],
)
@pytest.mark.parametrize("kind", ["usual", "ties", "masked"])
def test_probabilities_and_order(rows: int, vocab: int, top_k: int, kind: str) -> None:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    if kind == "ties":
        logits = logits.round()
    if kind == "masked" and vocab > 20:
        logits[:, 3:11] = -torch.inf
        logits[:, 5] = torch.nan
    probas, tokens = draft_top(logits.to(DEVICE), top_k)
    want_probas, want = expected(logits, top_k)
    assert torch.equal(tokens.cpu(), want)
    assert ulp_distance(probas.cpu().numpy(), want_probas.numpy()) <= ULPS


def test_ids_are_mapped_and_half_precision_is_read() -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(1)).half()
    token_map = torch.arange(300) * 7 + 5
    probas, tokens = draft_top(logits.to(DEVICE), 4, token_map.to(DEVICE))
    want_probas, want = expected(logits, 4)
    assert torch.equal(tokens.cpu(), token_map[want])
    assert np.abs(probas.cpu().numpy() - want_probas.numpy()).max() < 1e-7
