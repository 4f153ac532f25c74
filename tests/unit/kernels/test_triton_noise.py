"""The rough noise that decides which blocks are looked at stays within the error it is given."""

from __future__ import annotations

import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

import triton
import triton.language as tl

from aerie.kernels.triton_gpu.noise import ROUGH_ERROR, gumbel, rough_gumbel
from tests.unit.kernels.triton_device import DEVICE

N_WORDS = 4096


@triton.jit
def _both_kernel(words, exact, rough, SIZE: tl.constexpr):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    word = tl.load(words + place).to(tl.uint32)
    tl.store(exact + place, gumbel(word))
    tl.store(rough + place, rough_gumbel(word))


def test_rough_noise_is_close_everywhere() -> None:
    edges = [0, 1, 2, 2**28 - 1, 2**28, 2**28 + 1, 2**31, 2**32 - 2, 2**32 - 1]
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(0, 2**32, (N_WORDS,), generator=generator)
    # Every magnitude: noise is largest where a word is small, and least where it is large.
    powers = 2 ** torch.arange(32)
    words = torch.cat([torch.tensor(edges), powers, 2**32 - powers, drawn])[:N_WORDS]
    words = words.to(torch.int64).to(DEVICE)
    exact, rough = (torch.empty(N_WORDS, device=DEVICE) for _ in range(2))
    _both_kernel[(N_WORDS // 1024,)](words, exact, rough, SIZE=1024)
    v = (words.double().cpu() + 0.5) / 2**32
    wanted = -torch.log(-torch.log1p(-v))
    assert (exact.double().cpu() - wanted).abs().max() < 2e-6
    # A tenth of what the kernel allows for.
    assert (rough - exact).abs().max() < ROUGH_ERROR.value / 10
