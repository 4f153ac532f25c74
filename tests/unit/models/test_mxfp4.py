"""MXFP4 dequantising: by hand, and bit for bit against transformers."""

from __future__ import annotations

import pytest
import torch

from aerie.models.mxfp4 import dequantise


def test_one_block_by_hand() -> None:
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[..., 0] = 0x2F  # low half first: code 15 is -6, code 2 is 1
    blocks[..., 1] = 0x89  # code 9 is -0.5, code 8 is minus zero
    scales = torch.full((1, 1, 1), 128, dtype=torch.uint8)  # times two
    got = dequantise(blocks, scales, torch.float32)
    assert got.shape == (1, 1, 32)
    assert got[0, 0, :4].tolist() == [-12.0, 2.0, -1.0, 0.0]
    assert not got[0, 0, 4:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 10, 2), (2, 64, 5)], ids=str)
def test_equals_transformers(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    pytest.importorskip("transformers", reason="the oracle is not installed")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(sum(shape))
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(20, 240, shape, dtype=torch.uint8, generator=generator)
    want = convert_moe_packed_tensors(blocks, scales, dtype=dtype)  # [experts, n_in, n_out]
    assert torch.equal(dequantise(blocks, scales, dtype).transpose(1, 2), want)


def test_the_nan_scale_is_not_hidden() -> None:
    blocks = torch.full((1, 1, 1, 16), 0x22, dtype=torch.uint8)
    scales = torch.full((1, 1, 1), 255, dtype=torch.uint8)
    assert bool(dequantise(blocks, scales, torch.float32).isnan().all())
