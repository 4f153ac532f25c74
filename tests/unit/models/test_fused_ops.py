"""Fused layer operations against their PyTorch definition, and a whole decoder with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.attention import pytorch
from aerie.attention.rows import Rows
from aerie.models.layer_ops import TORCH_OPS, fused_ops
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.kernels.triton_device import DEVICE
from tests.unit.models.batches import CONFIGS, batches, run
from tests.unit.models.handmade import write_checkpoint

# The interpreter computes bfloat16 wrongly: it is tried on a GPU only.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype).to(DEVICE)


def assert_close_enough(found: Tensor, wanted: Tensor) -> None:
    """Equal but for a rounding of the result, or the order of a sum in float32."""
    step = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, wanted, rtol=2 * step, atol=4 * step)


@each_dtype
@pytest.mark.parametrize("size", [1, 100, 256, 4096])
def test_norm_with_and_without_an_addition(dtype: torch.dtype, size: int) -> None:
    x, added = draw(3, size, dtype=dtype), draw(3, size, dtype=dtype, seed=1)
    weight = draw(size, dtype=torch.float32, seed=2)
    fused = fused_ops()
    assert_close_enough(fused.normalise(x, weight, 1e-5), TORCH_OPS.normalise(x, weight, 1e-5))
    total, normed = fused.add_normalise(x, added, weight, 1e-5)
    wanted, wanted_normed = TORCH_OPS.add_normalise(x, added, weight, 1e-5)
    assert torch.equal(total, wanted)
    assert_close_enough(normed, wanted_normed)


@each_dtype
def test_norm_of_heads_cut_from_a_product(dtype: torch.dtype) -> None:
    heads = draw(3, 96, dtype=dtype)[:, 32:64].unflatten(1, (2, 16))
    weight = draw(16, dtype=torch.float32, seed=2)
    found = fused_ops().normalise(heads, weight, 1e-6)
    assert_close_enough(found, TORCH_OPS.normalise(heads, weight, 1e-6))


@each_dtype
@pytest.mark.parametrize("size", [1, 24, 1500])
def test_gate_of_two_halves_of_a_product(dtype: torch.dtype, size: int) -> None:
    gated, up = draw(3, 2 * size, dtype=dtype).mul(4).split(size, dim=1)
    assert_close_enough(fused_ops().gate(gated, up), TORCH_OPS.gate(gated, up))
    apart = gated.contiguous(), up.contiguous()
    assert torch.equal(fused_ops().gate(*apart), fused_ops().gate(gated, up))


@each_dtype
@pytest.mark.parametrize(("n_heads", "n_kv_heads", "dim"), [(1, 1, 2), (4, 1, 32), (6, 2, 24),
                                                            (16, 8, 128)])  # fmt: skip
def test_rotation_and_storing(dtype: torch.dtype, n_heads: int, n_kv_heads: int, dim: int) -> None:
    rows, widths = 3, [n_heads * dim, n_kv_heads * dim, n_kv_heads * dim]
    parts = draw(rows, sum(widths), dtype=dtype).split(widths, dim=1)
    heads = tuple(part.unflatten(1, (-1, dim)) for part in parts)
    angles = draw(rows, 1, dim // 2, dtype=torch.float32, seed=3)
    slots = torch.tensor([5, 0, 2], device=DEVICE)
    stored = [draw(7, n_kv_heads, dim, dtype=dtype, seed=k) for k in (4, 5)]
    wanted = [part.clone() for part in stored]
    rotation = angles.cos(), angles.sin()
    found = fused_ops().rotate_store(heads, rotation, slots, tuple(stored))
    assert_close_enough(found, TORCH_OPS.rotate_store(heads, rotation, slots, tuple(wanted)))
    assert_close_enough(stored[0], wanted[0])
    assert torch.equal(stored[1], wanted[1])
    untouched = [1, 3, 4, 6]
    assert torch.equal(stored[0][untouched], wanted[0][untouched])


@pytest.mark.parametrize(("dim", "factor"), [(2, 1.0), (24, 1.25), (128, 1.0)])
def test_turning_positions_far_and_near(dim: int, factor: float) -> None:
    positions = torch.tensor([0, 1, 977, 33_791, 131_071] * 9, device=DEVICE)
    frequencies = 1e4 ** -(torch.arange(0, dim, 2, device=DEVICE).float() / dim)
    found = fused_ops().turn(positions, frequencies, factor)
    for part, wanted in zip(found, TORCH_OPS.turn(positions, frequencies, factor), strict=True):
        assert part.shape == wanted.shape and part.dtype == torch.float32
        assert torch.allclose(part, wanted, rtol=1e-6, atol=1e-6)
    alone = fused_ops().turn(positions[3:4], frequencies, factor)
    assert all(torch.equal(a[0], b[3]) for a, b in zip(alone, found, strict=True))


def test_no_rows_are_no_work() -> None:
    empty = torch.zeros(0, 8, device=DEVICE)
    weight = torch.ones(8, device=DEVICE)
    assert fused_ops().add_normalise(empty, empty, weight, 1e-5)[1].shape == (0, 8)
    assert fused_ops().gate(empty, empty).shape == (0, 8)
    nowhere = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    assert fused_ops().turn(nowhere, torch.ones(4, device=DEVICE), 1.0)[0].shape == (0, 1, 4)


@pytest.mark.parametrize(("name", "is_fused"), [("llama", True), ("qwen3", False)])
def test_a_decoder_gives_the_same_logits(tmp_path: Path, name: str, is_fused: bool) -> None:
    directory = write_checkpoint(tmp_path, CONFIGS[name])
    # Trees beside a chunk, over an empty pool: the interpreter takes a millisecond per row.
    parts = [to_device(part) for part in batches()[1:]]
    found = []
    for ops in (TORCH_OPS, fused_ops()):
        options = LoadOptions(device=DEVICE, is_fused=is_fused, ops=ops)
        found.append(run(load_decoder(directory, pytorch.prepare, options), parts))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def to_device(rows: Rows) -> Rows:
    moved = {n: v.to(DEVICE) for n, v in vars(rows).items() if isinstance(v, torch.Tensor)}
    return Rows(**moved, bounds=rows.bounds)
