"""Products in eight bits by Triton: tiles that fit their chip, and floats rounded as torch does."""

from __future__ import annotations

import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.chips import CHIPS
from aerie.kernels.triton_gpu import refuse_device
from aerie.kernels.triton_gpu.fp8_rows import MOST_AT_ONCE, TILES, _fp8_round_kernel
from aerie.kernels.triton_gpu.packed_floats import KNOWS_FP8

NO_TRITON = refuse_device("cpu")


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("is_widened", [False, True])
def test_every_tile_fits(name: str, is_widened: bool) -> None:
    for _, tile in TILES:
        fitted = tile.fitted(CHIPS[name], is_widened)
        assert fitted.shared_bytes(is_widened) <= CHIPS[name].shared_bytes
        assert fitted.stages >= 2 and fitted.inputs >= 32  # of a matrix instruction
        if CHIPS[name].capability == 90 and not is_widened:
            assert fitted == tile, "as they were measured"


def test_chips_without_a_unit_for_eight_bits_are_known() -> None:
    assert [n for n, chip in CHIPS.items() if chip.capability < KNOWS_FP8] == ["a100", "rtx_3090"]


@pytest.mark.skipif(NO_TRITON is not None, reason=f"triton: {NO_TRITON}")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
@pytest.mark.parametrize("largest", [448.0, 448.0 / 2**30, 448.0 * 2**90])
def test_floats_are_rounded_as_torch_rounds_them(largest: float) -> None:
    """All of them, the halves between two, and what is next to those on either side."""
    known = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (known[1:] + known[:-1]) / 2
    beside = [torch.nextafter(halves, torch.full_like(halves, way)) for way in (-1e9, 1e9)]
    sizes = torch.cat((known, halves, *beside))
    values = torch.cat((sizes, -sizes))
    x = (values * (largest / 448.0))[None].contiguous()
    near, scales = torch.zeros(x.shape, dtype=torch.uint8), torch.zeros(1)
    _fp8_round_kernel[(1,)](x, near, scales, x.shape[1], H=MOST_AT_ONCE, OVERLAP=False)
    assert scales.item() == largest / 448.0
    assert near[0].equal(values.to(torch.float8_e4m3fn).view(torch.uint8))
