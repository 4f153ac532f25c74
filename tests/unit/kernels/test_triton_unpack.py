"""Weights written out some outputs at a time: of larger arrays, into larger ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.errors import UsageError
from aerie.kernels.cases.unpack import unpack_fp8_inputs, unpack_int4_inputs
from aerie.kernels.pytorch import products
from aerie.kernels.triton_gpu import refuse_device, unpack

NO_TRITON = refuse_device("cpu")
KERNELS: dict[str, Callable[..., Any]] = {
    "unpack_int4": unpack_int4_inputs,
    "unpack_fp8": unpack_fp8_inputs,
}
pytestmark = [
    pytest.mark.skipif(NO_TRITON is not None, reason=f"triton: {NO_TRITON}"),
    pytest.mark.parametrize("name", KERNELS),
]


def drawn(name: str, n_out: int, n_in: int, group: int) -> dict[str, Any]:
    made = KERNELS[name](np.random.default_rng(3), (n_out, n_in), group)
    return {
        key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for key, value in made.items()
    }


@pytest.mark.parametrize(("n_in", "group"), [(96, 32), (160, 160), (640, 128)])
@pytest.mark.parametrize(("first", "end"), [(0, 16), (16, 32), (32, 37), (3, 21)])
def test_some_outputs_of_a_layer(name: str, n_in: int, group: int, first: int, end: int) -> None:
    """Their scales are columns that lie as far apart as the layer's; nothing else is written."""
    layer = drawn(name, 37, n_in, group)
    whole = layer.pop("weight")
    getattr(products, name)(weight=whole, **layer)
    own = {k: v[:, first:end] for k, v in layer.items() if k in ("scales", "zeros")}
    codes = layer["codes"][first:end].clone()
    wide = torch.full((end - first, n_in + 8), 7.0)
    getattr(unpack, name)(weight=wide[:, :n_in], codes=codes, **own, group_size=layer["group_size"])
    assert torch.equal(wide[:, :n_in], whole[first:end])
    assert (wide[:, n_in:] == 7.0).all()


def test_entries_that_lie_apart_are_refused(name: str) -> None:
    layer = drawn(name, 5, 64, 32)
    layer["weight"] = torch.zeros(64, 5).t()
    with pytest.raises(UsageError, match="written in place has stride 5"):
        getattr(unpack, name)(**layer)
