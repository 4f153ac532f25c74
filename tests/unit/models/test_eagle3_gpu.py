"""The draft head on a GPU: the CPU's logits, no host read, and a captured step that replays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aerie.attention import pytorch
from aerie.attention.rows import Bounds, Rows
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.probe import probe_at_load
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs
from tests.unit.models.batches import to_gpu
from tests.unit.models.trained_pair import BOUNDARIES, train

# To watch for waits is a prototype of torch's, and it says so once.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]


def load(parent: Path, case: str, device: str, dtype: torch.dtype | None = None) -> Eagle3Head:
    pairs.write_target(parent / "target")
    pairs.write_head(parent / case, pairs.CASES[case])
    options = LoadOptions(dtype=dtype, device=device)
    target = load_decoder(parent / "target", pytorch.prepare, options)
    return load_head(parent / case, target, pytorch.prepare, HeadOptions(window=6, sinks=2))


def batch() -> tuple[Rows, Rows]:
    """Three requests extended, then one drafted row each; generous bounds, as a bucket has."""
    slots = packed_slots([21, 2, 10])
    tokens = [torch.arange(20) % 61, torch.arange(1), torch.arange(9)]
    extend = causal_batch(tokens, [own[:-1] for own in slots])
    step = causal_batch([torch.tensor([k]) for k in (3, 4, 5)], slots)
    return replace(extend, bounds=Bounds(24, 40)), replace(step, bounds=Bounds(8, 40))


def drafts(head: Eagle3Head, device: str) -> torch.Tensor:
    extend, step = (to_gpu(rows) if device == "cuda" else rows for rows in batch())
    generator = torch.Generator().manual_seed(0)
    taps = torch.randn(30, len(head.taps), pairs.HIDDEN, generator=generator).to(device)
    pool = head.allocate_pool(64)
    asked = torch.tensor([19, 20, 29], device=device)
    first = head.extend(extend, taps, pool, asked)
    second = head.step(step, first.hidden, pool)
    return torch.cat([first.logits, second.logits]).cpu()


@pytest.mark.parametrize("case", ["official", "two_layers", "modelopt", "speculators"])
def test_gpu_equals_cpu(tmp_path: Path, case: str) -> None:
    want = drafts(load(tmp_path, case, "cpu"), "cpu")
    got = drafts(load(tmp_path, case, "cuda"), "cuda")
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
    for dtype in (torch.bfloat16, torch.float16):
        half = drafts(load(tmp_path, case, "cuda", dtype), "cuda")
        assert torch.cosine_similarity(half, want, dim=-1).min() > 0.98, dtype


# torch says once that the mode is a prototype; that must not end the test half-way through it.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_step_reads_nothing_and_can_be_captured(tmp_path: Path) -> None:
    head = load(tmp_path, "official", "cuda", torch.bfloat16)
    extend, step = (to_gpu(rows) for rows in batch())
    taps = torch.randn(30, 3, pairs.HIDDEN, device="cuda", dtype=torch.bfloat16)
    asked = torch.tensor([19, 20, 29], device="cuda")
    pool = head.allocate_pool(64)
    first = head.extend(extend, taps, pool, asked)
    want = head.step(step, first.hidden, pool).logits.clone()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = head.extend(extend, taps, pool, asked)
        second = head.step(step, again.hidden, pool)
        ids = head.to_target(second.logits.argmax(-1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(ids.max()) < pairs.VOCAB
    hidden = first.hidden.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = head.step(step, hidden, pool).logits
    with torch.inference_mode():
        captured.zero_()
    graph.replay()
    torch.testing.assert_close(captured, want, rtol=0, atol=0)


def test_probe_on_gpu(tmp_path: Path) -> None:
    pair = train(tmp_path)
    directory = pair.write_head(
        tmp_path / "head", eagle_aux_hidden_state_layer_ids=list(BOUNDARIES)
    )
    target = load_decoder(pair.directory / "target", pytorch.prepare, LoadOptions(device="cuda"))
    head = load_head(directory, target, pytorch.prepare, HeadOptions())
    report = probe_at_load(target, head, "refuse")
    assert report is not None and report.agreement > 0.7
