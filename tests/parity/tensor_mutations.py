"""Mutations that make tensors of a call's arrays, plain ones and odd ones; shared, not a test."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.kernels.card import Card
from tests.parity.mutations import ARRAY_MUTATIONS, Inputs, Mutate, some_array


def as_tensor(array: Any) -> Any:
    """An array as a tensor of the same memory; as it is where torch has none."""
    try:
        tensor = torch.from_numpy(array)
    except (TypeError, ValueError):
        return array
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def make_tensors(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """All arrays as tensors, or some of them."""
    share = rng.choice((1.0, 1.0, 0.5))
    for name, value in inputs.items():
        # A read-only array cannot be shared: torch would warn, and writing to it is undefined.
        if type(value) is np.ndarray and value.flags.writeable and rng.random() < share:
            inputs[name] = as_tensor(value)


def make_odd_tensor(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """One array as a tensor that is not plain: another layout, no memory, a graph behind it."""
    port = some_array(rng, card, inputs)
    if port is not None:
        tensor = as_tensor(inputs[port.name].copy())
        odd = rng.choice(_ODD)
        inputs[port.name] = odd(tensor) if isinstance(tensor, Tensor) else inputs[port.name]


class _Marked(Tensor):
    """A subclass, which may mean anything by its entries."""


def _negated(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


def _nested(tensor: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype
        return torch.nested.nested_tensor([torch.zeros(2, 3)])


def _quantised(tensor: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still there
        return torch.quantize_per_tensor(tensor.float().nan_to_num(0), 0.1, 0, torch.qint8)


def _asking_for_gradients(tensor: Tensor) -> Tensor:
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def _folded(tensor: Tensor) -> Tensor:
    return tensor[:1].expand(tensor.shape) if tensor.dim() and tensor.shape[0] else tensor


def _as_bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


_ODD: tuple[Callable[[Tensor], Any], ...] = (
    lambda tensor: tensor.float().to_sparse() if tensor.dim() else tensor,
    lambda tensor: tensor.to("meta"),
    lambda tensor: tensor.as_subclass(_Marked),
    lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    lambda tensor: tensor.mT.contiguous().mT if tensor.dim() >= 2 else tensor,
    _negated,
    _nested,
    _quantised,
    _asking_for_gradients,
    _folded,
    _as_bits,
)

MUTATIONS: dict[str, Mutate] = {
    **ARRAY_MUTATIONS,
    "tensors": make_tensors,
    "odd tensor": make_odd_tensor,
}
