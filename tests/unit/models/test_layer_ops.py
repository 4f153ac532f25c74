"""The operations and layouts for a CPU give what the definitions give."""

from __future__ import annotations

import pytest
import torch

from aerie.models.layer_ops import CPU_OPS, TORCH_OPS, LayerOps
from aerie.models.linear import DenseLinear, column_major, fuse
from aerie.models.rope import RopeSettings, build_rotary


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "n_heads", "dim"), [(0, 1, 2), (1, 4, 128), (7, 3, 6)])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_a_signed_rotation_gives_the_same_bits(
    dtype: torch.dtype, rows: int, n_heads: int, dim: int, factor: float
) -> None:
    rotary = build_rotary(RopeSettings("default", 1e4, attention_factor=factor), dim, "cpu")
    heads = tuple(draw(rows, n, dim, seed=n).to(dtype) for n in (n_heads, 1, 1))
    slots = torch.arange(rows) + 1

    def rotated(ops: LayerOps) -> list[torch.Tensor]:
        stored = [torch.zeros(9, 1, dim, dtype=dtype) for _ in range(2)]
        rotation = rotary.at(torch.arange(rows) * 997, ops.turn)
        turned = rotation.cos, rotation.sin
        queries = ops.rotate_store(heads, turned, slots, (stored[0], stored[1]))
        return [queries, *stored]

    for found, wanted in zip(rotated(CPU_OPS), rotated(TORCH_OPS), strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("rows", [0, 1, 2, 6, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_weights_by_columns_multiply_alike(rows: int, has_bias: bool) -> None:
    weights = [draw(n_out, 48, seed=n_out) for n_out in (32, 8)]
    biases = [draw(len(weight), seed=9) if has_bias else None for weight in weights]
    rowwise = [DenseLinear(w, b) for w, b in zip(weights, biases, strict=True)]
    columnwise = [column_major(w, b) for w, b in zip(weights, biases, strict=True)]
    x = draw(rows, 48, seed=5)
    for one, other in zip(rowwise, columnwise, strict=True):
        assert torch.equal(one.weight, other.weight)
        torch.testing.assert_close(one(x), other(x), rtol=1e-5, atol=1e-4)
    joined = fuse(columnwise, column_major)
    for one, other in zip(rowwise, joined(x), strict=True):
        torch.testing.assert_close(one(x), other, rtol=1e-5, atol=1e-4)
    assert joined.linear.weight.t().is_contiguous()
