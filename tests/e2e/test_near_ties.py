"""The limit of a near tie covers what fast numerics move, and the bench counts by size."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from aerie.attention.rows import Bounds, causal_rows
from aerie.bench.report.front import RECORD
from aerie.bench.round.setup import RoundSetup, read_prompts
from aerie.bench.round.texts import Grid, count_by_size
from aerie.models.decoder import Decoder
from aerie.near_ties import LIMITS

SETUP = RoundSetup("cpu", "float32", None, "numpy", "graphs")
ROOT = Path(__file__).parents[2]
HEAD = 100  # tokens read at once before rows are compared


@torch.inference_mode()
def logits_of(target: Decoder, tokens: list[int], n_rows: int) -> torch.Tensor:
    """Of all positions behind the head, so many of them in each pass."""
    pool, at, found = target.allocate_pool(len(tokens) + 1), 0, []
    slots = torch.arange(1, len(tokens) + 1, dtype=torch.int32)
    while at < len(tokens):
        n = min(n_rows if at else HEAD, len(tokens) - at)
        own, seen = (torch.tensor([0, end], dtype=torch.int32) for end in (n, at + n))
        ids = torch.tensor(tokens[at : at + n])
        rows = causal_rows(ids, own, seen, slots[: at + n], Bounds(n, at + n))
        found.append(target.forward(rows, pool, torch.arange(n)).logits)
        at += n
    return torch.cat(found[1:])


def test_rows_in_other_company_move_a_gap_by_less_than_the_limit() -> None:
    """The two best logits of a row, decoded alone and verified with others, in float32."""
    target = SETUP.load().target
    moved = []
    for prompt in read_prompts(3, HEAD + 32, target.geometry.vocab_size):
        alone = logits_of(target, prompt, 1)
        best = alone.topk(2, dim=1)
        unit = torch.exp2(best.values[:, 0].abs().log2().floor())
        for n_rows in (8, 5, 32):
            shift = logits_of(target, prompt, n_rows).gather(1, best.indices) - best.values
            moved.append((shift[:, 0] - shift[:, 1]).abs() / unit)
    largest = float(torch.cat(moved).max())
    assert 0 < largest < LIMITS["float32"]


def test_the_limit_covers_every_recorded_divergence() -> None:
    """Of bfloat16 on a GPU: the two choices as a pass in that dtype sees them."""
    record = json.loads((ROOT / RECORD).read_text(encoding="utf-8"))
    assert record["dtype"] == "bfloat16"
    parted = [entry for own in record["policies"].values() for entry in own["divergences"]]
    steps = [entry["own_gap"] / (entry["gap"] / entry["gap_ulps"]) for entry in parted]
    assert steps, "nothing parted: the limit stands on nothing"
    assert math.ceil(max(steps) - 0.1) * 2.0**-7 <= LIMITS["bfloat16"]


def test_the_bench_counts_by_size() -> None:
    grid = Grid((32, 64), (1, 2), n_new=6, most_tokens=64)
    found = count_by_size(SETUP, SETUP.load(), grid)
    assert [(entry["context"], entry["batch"]) for entry in found] == [(32, 1), (32, 2), (64, 1)]
    for entry in found:
        assert entry["texts"] == 2 and entry["parted"] == 0
        assert entry["plain"] == entry["chain 7"]
        assert entry["plain"]["tokens"] == 12
