"""Packed layers that write their weight out for many rows, beside those that never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aerie.kernels import catalogue
from aerie.kernels.cases.products import fp8_inputs, int4_inputs
from aerie.models import packed
from aerie.models.linear import DenseLinear, join
from aerie.models.packed import PackedLinear, PackedProducts, _outputs_at_a_time

DENSE_FROM = 8
N_OUT, N_IN, GROUP = 37, 96, 32
NEVER = PackedProducts("pytorch")
OFTEN = PackedProducts("pytorch", dense_from=DENSE_FROM)
BUILDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "multiply_int4": int4_inputs,
    "multiply_fp8": fp8_inputs,
}
each_card = pytest.mark.parametrize("name", BUILDERS)


def layer_of(name: str, products: PackedProducts, seed: int = 1, **fields: Any) -> PackedLinear:
    """A random layer of so many outputs, the same for every `products`."""
    n_out, n_in = fields.pop("n_out", N_OUT), fields.pop("n_in", N_IN)
    made = BUILDERS[name](np.random.default_rng(seed), (0, n_out, n_in), GROUP)
    sizes = {"group_size": made.pop("group_size")}
    weights = {key: torch.from_numpy(array) for key, array in made.items() if key != "x"}
    return replace(products.make("layer", name, weights, sizes), **fields)


def rows(n_rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n_rows, N_IN, generator=torch.Generator().manual_seed(n_rows)).to(dtype)


def assert_near(got: Tensor, want: Tensor, name: str) -> None:
    """Within what the card allows its own backends."""
    allowed = catalogue()[name].tolerance("y").cpu * torch.finfo(want.dtype).eps
    largest = float(want.abs().max())
    assert got.shape == want.shape and got.dtype == want.dtype
    assert float((got.float() - want.float()).abs().max()) <= allowed * largest


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """What is written out: the first output and their number."""
    calls: list[tuple[int, int]] = []
    write_out = PackedLinear._write_out

    def noted(self: PackedLinear, kernel: Any, weight: Tensor, first: int) -> None:
        calls.append((first, weight.shape[0]))
        weight.fill_(float("nan"))  # as memory is found
        write_out(self, kernel, weight, first)

    monkeypatch.setattr(PackedLinear, "_write_out", noted)
    yield calls


@each_card
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("pieces", [1, 3])
def test_many_rows_give_the_packed_product(
    name: str,
    dtype: torch.dtype,
    has_bias: bool,
    pieces: int,
    written: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if pieces > 1:
        monkeypatch.setattr(packed, "TILE_OUTPUTS", 16)
        monkeypatch.setattr(packed, "MOST_SCRATCH", 1)
    bias = rows(1, dtype)[0, :N_OUT].clone() if has_bias else None
    never, often = (layer_of(name, products, bias=bias) for products in (NEVER, OFTEN))
    for n_rows in (DENSE_FROM - 1, DENSE_FROM, 41):
        written.clear()
        x = rows(n_rows, dtype)
        got, want = often(x), never(x)
        if n_rows < DENSE_FROM:
            assert not written and torch.equal(got, want)
        else:
            assert written == ([(0, 37)] if pieces == 1 else [(0, 16), (16, 16), (32, 5)])
            assert_near(got, want, name)


@each_card
def test_inputs_in_another_order(name: str, written: list[tuple[int, int]]) -> None:
    order = torch.randperm(N_IN, generator=torch.Generator().manual_seed(5))
    never, often = (layer_of(name, products, order=order) for products in (NEVER, OFTEN))
    assert_near(often(rows(20)), never(rows(20)), name)
    assert written


@each_card
def test_joined_layers_write_out_one_weight(name: str, written: list[tuple[int, int]]) -> None:
    made: list[list[Tensor]] = []
    for products in (NEVER, OFTEN):
        parts = [layer_of(name, products, seed=n_out, n_out=n_out) for n_out in (5, 17, 9)]
        made.append(list(join(parts, DenseLinear, "these")(rows(20))))
    assert written == [(0, 31)]
    for got, want in zip(made[1], made[0], strict=True):
        assert_near(got, want, name)
    never, often = (layer_of(name, products) for products in (NEVER, OFTEN))
    assert never.joined([often]) is None and often.joined([often]) is not None


def test_the_scratch_is_bounded() -> None:
    """64 MiB, but one tile of outputs at least, and whole ones always."""
    for n_in in (128, 4096, 14336, 1 << 17):
        outputs = _outputs_at_a_time(2 * n_in)
        assert outputs % 128 == 0
        assert outputs == 128 or 2 * n_in * outputs <= 64 << 20
        assert 2 * n_in * (outputs + 128) > 64 << 20
    assert _outputs_at_a_time(2 * 4096) == 8192
    assert _outputs_at_a_time(4 << 20) == 128
