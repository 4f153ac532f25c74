"""The decoder on a GPU: the CPU's logits, and no device-to-host read inside a forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aerie.attention import pytorch
from aerie.attention.rows import Bounds, causal_rows, tree_rows
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models.batches import CONFIGS, batches, run, to_gpu
from tests.unit.models.handmade import write_checkpoint

# To watch for waits is a prototype of torch's, and it says so once.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]


@contextmanager
def no_host_reads() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CONFIGS)
def test_gpu_equals_cpu(tmp_path: Path, name: str) -> None:
    directory = write_checkpoint(tmp_path, CONFIGS[name])
    want = run(load_decoder(directory, pytorch.prepare, LoadOptions()), batches())
    gpu_batches = [to_gpu(rows) for rows in batches()]
    # Bounds may be generous, as those of a captured bucket are.
    gpu_batches = [replace(rows, bounds=Bounds(48, 100, 24)) for rows in gpu_batches]
    gpu = load_decoder(directory, pytorch.prepare, LoadOptions(device="cuda"))
    torch.testing.assert_close(run(gpu, gpu_batches), want, rtol=0, atol=1e-4)
    for dtype in (torch.bfloat16, torch.float16):
        half = load_decoder(directory, pytorch.prepare, LoadOptions(dtype, "cuda", is_fused=True))
        cosine = torch.cosine_similarity(run(half, gpu_batches), want, dim=-1)
        assert cosine.min() > 0.98, dtype


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_no_host_read_in_rows_or_forward(tmp_path: Path, name: str) -> None:
    directory = write_checkpoint(tmp_path, CONFIGS[name])
    gpu = load_decoder(directory, pytorch.prepare, LoadOptions(device="cuda"))
    pool = gpu.allocate_pool(200)
    prefill, mixed = (to_gpu(rows) for rows in batches())
    wanted = torch.arange(4, device="cuda")
    for part in (prefill, mixed):
        gpu.forward(part, pool, wanted, (0, 1))  # libraries set themselves up outside the check
    torch.cuda.synchronize()
    with no_host_reads():
        again = causal_rows(
            prefill.tokens, prefill.qo_indptr, prefill.kv_indptr, prefill.kv_indices, prefill.bounds
        )
        tree_rows(
            mixed.tokens,
            mixed.positions,
            mixed.ancestor_bits,
            mixed.qo_indptr,
            mixed.kv_indptr,
            mixed.kv_indices,
            mixed.bounds,
        )
        for part in (again, mixed):
            gpu.forward(part, pool, wanted, (0, 1))
        pool.move(wanted + 5, wanted + 7)
