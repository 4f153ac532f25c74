"""Exact products: which tile a layer takes, and the same bits whatever the number of rows."""

from __future__ import annotations

import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.errors import UsageError
from aerie.kernels.triton_gpu.exact_linear import Shape, exact_linears, walk_plan
from aerie.kernels.triton_gpu.gemm_plan import CUBLAS, GemmTable, Key, Plan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TUNED = Plan("dot", 64, 64, 16, 1, 4, 3)
SPLIT = Plan("dot", 64, 64, 16, 2, 4, 3)
SHAPE = Shape(64, 128, False)


@pytest.mark.usefixtures("rows_for_themselves")
def test_rows_have_the_bits_they_have_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    # The interpreter has no products of bfloat16; a GPU takes both dtypes in tests/gpu.
    weight = torch.randn(64, 128, generator=generator).to(DEVICE)
    bias = torch.randn(64, generator=generator).to(DEVICE)
    x = torch.randn(70, 128, generator=generator).to(DEVICE)
    layer = exact_linears(DEVICE).make(weight, bias)
    together = layer(x)
    want = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(together, want, rtol=1e-5, atol=1e-4)
    for first, end in ((0, 1), (3, 19), (20, 69)):
        assert torch.equal(layer(x[first:end]), together[first:end])
    assert layer(x[:0]).shape == (0, 64)


@pytest.mark.parametrize("n_rows", [1, 16, 17, 64, 65, 300])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_a_walk_never_splits_the_inner_axis(n_rows: int, element_bytes: int) -> None:
    plan = walk_plan(96, 48, n_rows, element_bytes)
    assert plan.kind == "dot" and plan.splits == 1 and plan.fits(96, 48)


def test_a_weight_that_no_tile_divides_is_refused() -> None:
    with pytest.raises(UsageError, match="50257 x 768"):
        walk_plan(50257, 768, 1)


def test_a_tuned_tile_is_taken_only_where_it_walks() -> None:
    table = GemmTable({Key(64, 128, 32): SPLIT, Key(64, 128, 2): TUNED})
    linears = exact_linears(DEVICE, table)
    linears.walked[SHAPE] = frozenset({2, 32})
    assert linears.plan(SHAPE, 2, 2) == TUNED
    assert linears.plan(SHAPE, 32, 2) == CUBLAS  # tried, and its bits were the walk's
    assert linears.plan(SHAPE, 31, 2) == walk_plan(64, 128, 31)
    assert linears.plan(SHAPE, 2, 4) == walk_plan(64, 128, 2, 4)  # tuned for bfloat16


def test_some_rows_of_narrow_weights_are_ours_though_the_library_walks() -> None:
    linears = exact_linears(DEVICE)
    o, down, qkv = Shape(4096, 4096, False), Shape(4096, 14336, False), Shape(6144, 4096, False)
    for shape in (o, down, qkv):
        linears.walked[shape] = frozenset({64, 96, 128, 256, 512})
    taken = {
        (name, n_rows): linears.plan(shape, n_rows, 2) == CUBLAS
        for name, shape in (("o", o), ("down", down), ("qkv", qkv))
        for n_rows in (64, 96, 128, 256, 512)
    }
    ours = {("o", 96), ("o", 128), ("o", 512), ("down", 96), ("down", 128)}
    assert {key for key, is_library in taken.items() if not is_library} == ours
