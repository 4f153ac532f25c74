"""Linear layers behind one seam: how weights are stored or multiplied is swapped here alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from aerie.errors import UsageError
from aerie.models.loader import Loader
from aerie.models.tensors import TensorSpec

# Sixteen rows were bitwise equal for 1 to 64 rows on the CPUs that were tried (2026-10).
TILE = 16


@dataclass(frozen=True)
class LinearShape:
    """The outside of a linear layer, however its weights are stored."""

    n_out: int
    n_in: int
    has_bias: bool = False


class Linear(Protocol):
    """A linear map of rows."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, n_in] to [rows, n_out], same dtype."""
        ...


class LinearFormat(Protocol):
    """A way to store a linear layer: the tensors it needs, and the layer they make."""

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """The tensors of the layer called `prefix` in a checkpoint."""
        ...

    def build(self, loader: Loader, prefix: str, shape: LinearShape) -> Linear:
        """The layer, from tensors that already passed the checks."""
        ...

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of the layer as it runs, where floats take so many bytes."""
        ...


@dataclass(frozen=True, eq=False)
class DenseLinear:
    """Weights in the run's dtype, multiplied by the library."""

    weight: Tensor  # [n_out, n_in]
    bias: Tensor | None  # [n_out]

    def __call__(self, x: Tensor) -> Tensor:
        """x times the weight's transpose, plus the bias."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class TiledLinear:
    """Sixteen rows at a time, the last tile padded with zeros: no row's bits depend on others.

    A library's product chooses its kernel by the number of rows, and a row's last bits change
    with it (7e-7 in float32 on the CPUs that were tried). Tiles of one height always take the same.
    """

    weight: Tensor  # [n_out, n_in]
    bias: Tensor | None  # [n_out]

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, n_in] to [rows, n_out]."""
        n_rows = x.shape[0]
        n_tiles = -(-n_rows // TILE)
        padded = x.new_zeros((n_tiles * TILE, x.shape[1]))
        padded[:n_rows] = x
        tiles = [functional.linear(tile, self.weight, self.bias) for tile in padded.split(TILE)]
        made = torch.cat(tiles) if tiles else x.new_zeros((0, self.weight.shape[0]))
        return made[:n_rows]


@dataclass(frozen=True)
class DenseFormat:
    """`<prefix>.weight` and, if the layer has one, `<prefix>.bias`.

    `make` decides how they are multiplied; a batch-invariant product goes in here.
    """

    make: Callable[[Tensor, Tensor | None], Linear] = DenseLinear

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """Weight and bias."""
        weight = TensorSpec(f"{prefix}.weight", (shape.n_out, shape.n_in))
        bias = TensorSpec(f"{prefix}.bias", (shape.n_out,))
        return (weight, bias) if shape.has_bias else (weight,)

    def build(self, loader: Loader, prefix: str, shape: LinearShape) -> Linear:
        """A layer over the stored weight itself: nothing is copied where it was mapped."""
        bias = loader.take(f"{prefix}.bias") if shape.has_bias else None
        return self.make(loader.take(f"{prefix}.weight"), bias)

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of weight and bias."""
        return shape.n_out * (shape.n_in + shape.has_bias) * element_bytes

    def shared(self, linear: Linear) -> Linear:
        """A layer of another model, as one that shares its weight multiplies it."""
        return linear


def column_major(weight: Tensor, bias: Tensor | None) -> DenseLinear:
    """A layer whose weight lies in memory by columns, for float32 on a CPU.

    The product then reads both operands along their rows. All layers of the built-in target, one
    thread, ms by columns against by rows: 1 row 1.4 and 1.4, 3 rows 1.7 and 1.4, 6 rows 2.0 and
    2.9, 8 rows 1.8 and 3.3, 64 rows 7.0 and 9.9 (2026-11).
    """
    return DenseLinear(weight.t().contiguous().t(), bias)


DENSE = DenseFormat()
COLUMN_MAJOR = DenseFormat(column_major)


Gate = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class GatedLinear(Protocol):
    """A linear layer that can join the two halves of its product itself."""

    def gated(self, x: Tensor) -> Tensor:
        """silu of the first half times the second, the bits of `LayerOps.gate`."""
        ...


class Projections(Protocol):
    """Several linear maps of the same rows."""

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """One result per map."""
        ...

    def gated(self, x: Tensor, gate: Gate) -> Tensor:
        """The results of two maps, joined."""
        ...


@dataclass(frozen=True, eq=False)
class SeparateProjections:
    """One product per map; the weights stay where they are."""

    linears: tuple[Linear, ...]

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """One result per map."""
        return [linear(x) for linear in self.linears]

    def gated(self, x: Tensor, gate: Gate) -> Tensor:
        """The results of two maps, joined."""
        return gate(*self(x))


@dataclass(frozen=True, eq=False)
class FusedProjections:
    """One product for all maps: fewer launches, weights copied side by side."""

    linear: Linear
    widths: tuple[int, ...]

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """One result per map, views of one product."""
        # What `torch.split` arrives at after two calls of its own.
        return self.linear(x).split_with_sizes(self.widths, -1)

    def gated(self, x: Tensor, gate: Gate) -> Tensor:
        """The results of two maps, joined; in the same launch where the product can do that."""
        return gate(*self(x)) if self._joining is None else self._joining.gated(x)

    @cached_property
    def _joining(self) -> GatedLinear | None:
        """Asked once: to ask a protocol takes 7 us or more, and every layer of a pass would."""
        return self.linear if isinstance(self.linear, GatedLinear) else None


@runtime_checkable
class WholeWeight(Protocol):
    """A linear layer whose weight is one dense matrix, however it is multiplied."""

    @property
    def weight(self) -> Tensor:
        """[n_out, n_in]"""
        ...

    @property
    def bias(self) -> Tensor | None:
        """[n_out]"""
        ...


def fuse(
    linears: Sequence[WholeWeight], make: Callable[[Tensor, Tensor | None], Linear] = DenseLinear
) -> FusedProjections:
    """Concatenate dense layers that read the same rows; all have a bias or none has."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    assert len(biases) in (0, len(linears)), "fused layers must agree on having a bias"
    weight = torch.cat([linear.weight for linear in linears])
    widths = tuple(linear.weight.shape[0] for linear in linears)
    return FusedProjections(make(weight, torch.cat(biases) if biases else None), widths)


@runtime_checkable
class JoinableLinear(Protocol):
    """A linear layer that may be one with others of its kind."""

    @property
    def n_out(self) -> int:
        """Outputs of the layer."""
        ...

    def joined(self, others: Sequence[Linear]) -> Linear | None:
        """One layer with the outputs of all, in order; None where they are stored differently."""
        ...


def join(
    linears: Sequence[Linear], make: Callable[[Tensor, Tensor | None], Linear], name: str
) -> Projections:
    """One product made of several layers, where all are stored alike; refuses other products."""
    whole = [linear for linear in linears if isinstance(linear, WholeWeight)]
    packed = [linear for linear in linears if isinstance(linear, JoinableLinear)]
    if len(whole) == len(linears):
        return fuse(whole, make)
    if len(whole) + len(packed) < len(linears):
        raise UsageError(f"{name} is neither plainly dense nor packed and cannot be fused")
    one = packed[0].joined(linears[1:]) if len(packed) == len(linears) else None
    if one is None:
        return SeparateProjections(tuple(linears))
    return FusedProjections(one, tuple(linear.n_out for linear in packed))
