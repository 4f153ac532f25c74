"""Packed layers: codes and scales stay packed, a kernel unpacks them as it multiplies.

Where rows are many, it may be faster to write the weight out for them and leave the product to the
library: some outputs at a time, so that no weight lies in memory as a whole.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from aerie.errors import UsageError
from aerie.kernels import catalogue, load
from aerie.kernels.kernel import Kernel
from aerie.models.linear import DENSE, DenseFormat, Linear, LinearFormat, LinearShape
from aerie.models.loader import Loader
from aerie.models.tensors import TensorSpec
from aerie.models.weights import Entry

Stored = Mapping[str, Entry]  # what a file's header says, by name
OUTPUTS = "N"  # the axis of the cards along which layers are joined
UNPACKED_BY = {"multiply_int4": "unpack_int4", "multiply_fp8": "unpack_fp8"}
# Of a weight that is written out; outputs at a time are a multiple of the library's widest tiles.
MOST_SCRATCH, TILE_OUTPUTS = 64 << 20, 128


@dataclass(frozen=True)
class PackedProducts:
    """Which kernels multiply packed weights."""

    backend: str | None = None  # None: Triton's on a GPU, PyTorch's elsewhere
    demanded_by: str = (
        ""  # what needs Triton's own kernel for every layer, in the words of an error
    )
    dense_from: int | None = None  # rows for which a weight is written out; None: for none

    def kernel(self, name: str, device: torch.device) -> Kernel:
        """A product by the name of its card."""
        chosen = self.backend or ("triton" if device.type == "cuda" else "pytorch")
        return _kernels(chosen, str(device))[name]

    def make(
        self, prefix: str, name: str, weights: Mapping[str, Tensor], sizes: Mapping[str, int]
    ) -> PackedLinear:
        """A layer over packed tensors, by the names of the card."""
        device = next(iter(weights.values())).device
        layer = PackedLinear(self.kernel(name, device), weights, sizes)
        if self.dense_from is not None:
            unpacking = Unpacking(self.kernel(UNPACKED_BY[name], device), self.dense_from)
            layer = replace(layer, unpacking=unpacking)
        if self.demanded_by and not _is_fast(name, sizes):
            raise UsageError(
                f"{self.demanded_by}: {prefix} has no fast product: {name} takes no"
                f" {', '.join(f'{key} {value}' for key, value in sizes.items())} on a GPU"
            )
        return layer


BY_DEVICE = PackedProducts()


@cache
def _kernels(backend: str, device: str) -> Mapping[str, Kernel]:
    # Arrays of a layer are right by construction: only its rows change.
    return load(backend, device=device, data_errors="status", trusts=True)


def _is_fast(name: str, sizes: Mapping[str, int]) -> bool:
    """Whether Triton's own kernel takes a layer of these sizes."""
    from aerie.kernels.triton_gpu import KERNELS

    covers = KERNELS[name].covers if name in KERNELS else None
    return name in KERNELS and (covers is None or covers({**sizes, "x": None}))


@dataclass(frozen=True)
class Unpacking:
    """What writes a weight out, and for how many rows at least."""

    kernel: Kernel
    least_rows: int


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A layer whose weight is never written out whole."""

    kernel: Kernel
    weights: Mapping[str, Tensor]  # arrays of the card
    sizes: Mapping[str, int]  # scalars of the card
    bias: Tensor | None = None  # [n_out]
    order: Tensor | None = None  # [n_in] i64, the input that stands at each place; None: as it is
    unpacking: Unpacking | None = None  # for many rows

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, n_in] to [rows, n_out]."""
        rows = x if self.order is None else x.index_select(1, self.order)
        if self.unpacking is not None and rows.shape[0] >= self.unpacking.least_rows:
            return self._unpacked(rows, self.unpacking.kernel)
        y: Tensor = self.kernel(x=rows, **self.weights, **self.sizes, bias=self.bias).y
        return y

    def _unpacked(self, rows: Tensor, kernel: Kernel) -> Tensor:
        """The product by the library. Sizes follow from shapes, so that a graph can record it."""
        n_out, n_in = self.n_out, rows.shape[1]
        each = min(n_out, _outputs_at_a_time(n_in * rows.element_size()))
        scratch = rows.new_empty((each, n_in))
        if each == n_out:
            self._write_out(kernel, scratch, 0)
            return functional.linear(rows, scratch, self.bias)
        y = rows.new_empty((rows.shape[0], n_out))
        for first in range(0, n_out, each):
            weight = scratch[: n_out - first]
            self._write_out(kernel, weight, first)
            # Into its columns of the result, which the library can step over: nothing is copied.
            own = y.narrow(1, first, weight.shape[0])
            if self.bias is None:
                torch.mm(rows, weight.t(), out=own)
            else:
                bias = self.bias.narrow(0, first, weight.shape[0])
                torch.addmm(bias, rows, weight.t(), out=own)
        return y

    def _write_out(self, kernel: Kernel, weight: Tensor, first: int) -> None:
        """Outputs from `first` on, as many as there is room for."""
        axes = _output_axes(self.kernel.card.name)
        packed = {
            name: tensor.narrow(axes[name], first, weight.shape[0])
            for name, tensor in self.weights.items()
        }
        kernel(weight=weight, **packed, **self.sizes)

    @property
    def n_out(self) -> int:
        """Outputs of the layer."""
        name, axis = next(iter(_output_axes(self.kernel.card.name).items()))
        return self.weights[name].shape[axis]

    @property
    def n_bytes(self) -> int:
        """Memory of its tensors."""
        held = [*self.weights.values(), *(t for t in (self.bias, self.order) if t is not None)]
        return sum(tensor.nbytes for tensor in held)

    def joined(self, others: Sequence[Linear]) -> PackedLinear | None:
        """All of them side by side; None where they are stored differently."""
        alike = [
            other for other in others if isinstance(other, PackedLinear) and self.is_like(other)
        ]
        if len(alike) < len(others):
            return None
        packed = [self, *alike]
        biases = [linear.bias for linear in packed if linear.bias is not None]
        weights = {
            name: torch.cat([linear.weights[name] for linear in packed], dim=axis)
            for name, axis in _output_axes(self.kernel.card.name).items()
        }
        return replace(self, weights=weights, bias=torch.cat(biases) if biases else None)

    def is_like(self, other: PackedLinear) -> bool:
        """Whether both are stored alike, with their inputs in the same order."""
        is_alike = self.kernel is other.kernel and self.sizes == other.sizes
        is_alike &= self.unpacking == other.unpacking
        is_alike &= (self.bias is None) == (other.bias is None)
        if self.order is None or other.order is None:
            return is_alike and self.order is other.order
        return is_alike and torch.equal(self.order, other.order)


def _outputs_at_a_time(row_bytes: int) -> int:
    """Rows of a scratch of limited size, but one tile of them at least."""
    return max(1, MOST_SCRATCH // (row_bytes * TILE_OUTPUTS)) * TILE_OUTPUTS


@cache
def _output_axes(name: str) -> Mapping[str, int]:
    """Where each stored array of a card has its outputs."""
    stored = [port for port in catalogue()[name].inputs if not port.optional]
    return {port.name: port.shape.index(OUTPUTS) for port in stored if OUTPUTS in port.shape}


@dataclass(frozen=True)
class LeftOut:
    """Layers that a quantiser left as they were, by the names of its config."""

    names: tuple[str, ...] = ()

    def __contains__(self, prefix: object) -> bool:
        return isinstance(prefix, str) and any(_is_within(prefix, name) for name in self.names)


NONE = LeftOut()


def _is_within(prefix: str, name: str) -> bool:
    """Its whole name, a block around it, or how it ends; patterns begin with `re:`."""
    if name.startswith("re:"):
        return re.match(name.removeprefix("re:"), prefix) is not None
    return bool(name) and f".{name}." in f".{prefix}."


@dataclass(frozen=True, kw_only=True)
class PackedFormat(LinearFormat, ABC):
    """A format of packed layers, as a config describes it."""

    left_out: LeftOut = NONE  # layers that are not packed
    products: PackedProducts = BY_DEVICE
    method: str = ""  # as its config spells it

    def with_products(self, products: PackedProducts) -> Self:
        """The same, multiplied by these."""
        return replace(self, products=products)

    @abstractmethod
    def is_stored(self, prefix: str, stored: Stored) -> bool:
        """Whether a file holds a layer packed: quantisers leave some as they are."""


@dataclass(frozen=True)
class MixedFormat:
    """Packed layers, and dense ones where a config says so."""

    packed: PackedFormat
    dense: DenseFormat = DENSE

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """Those of the layer's own format."""
        return self._of(prefix).tensors(prefix, shape)

    def build(self, loader: Loader, prefix: str, shape: LinearShape) -> Linear:
        """The layer in its own format."""
        return self._of(prefix).build(loader, prefix, shape)

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of the layer in its own format."""
        return self._of(prefix).n_bytes(prefix, shape, element_bytes)

    def _of(self, prefix: str) -> LinearFormat:
        return self.dense if prefix in self.packed.left_out else self.packed
