"""Products of a draft head in eight bits: what it proposes is verified, so it need not be exact.

A product of few rows takes as long as reading its weight, and codes are half the bytes. They are
made when a layer is, beside the dense weight: prompts have rows enough to be bound by the matrix
units, and what slices or joins layers does so before anything is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from aerie.kernels.cards.products import LARGEST_FLOAT
from aerie.kernels.kernel import Kernel
from aerie.models.linear import DenseFormat, Linear, LinearShape, WholeWeight
from aerie.models.packed import BY_DEVICE

PRODUCT = "multiply_fp8_rows"
MOST_ROWS = 512  # of a product in eight bits
AT_A_TIME = 4096  # outputs that are rounded together: they are widened to float32 on the way


class WholeLinear(Linear, WholeWeight, Protocol):
    """A dense layer that says what its weight is."""


@dataclass(frozen=True, eq=False)
class EightBitLinear:
    """A dense layer whose products of up to `MOST_ROWS` rows are in eight bits."""

    dense: WholeLinear  # multiplies more rows
    codes: Tensor  # [n_out, n_in] u8, e4m3
    scales: Tensor  # [n_out] f32
    kernel: Kernel

    def __call__(self, x: Tensor) -> Tensor:
        """x times the weight's transpose, plus the bias. [rows, n_in] to [rows, n_out]"""
        if x.shape[0] > MOST_ROWS:
            return self.dense(x)
        y: Tensor = self.kernel(x=x, codes=self.codes, scales=self.scales, bias=self.bias).y
        return y

    @property
    def weight(self) -> Tensor:
        """As it was before it was rounded. [n_out, n_in]"""
        return self.dense.weight

    @property
    def bias(self) -> Tensor | None:
        """[n_out]"""
        return self.dense.bias


def eight_bit_linear(dense: Linear) -> EightBitLinear:
    """A layer beside a dense one, which stays as it is: it may be another model's."""
    assert isinstance(dense, WholeWeight), "layers are rounded from one dense weight"
    codes, scales = round_weight(dense.weight)
    return EightBitLinear(dense, codes, scales, BY_DEVICE.kernel(PRODUCT, codes.device))


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest e4m3 of a weight [n_out, n_in], as bits, and the scale of each output."""
    parts = [_rounded(part.float()) for part in weight.split(AT_A_TIME)]
    codes, scales = zip(*parts, strict=True)
    return torch.cat(codes), torch.cat(scales)


def _rounded(wide: Tensor) -> tuple[Tensor, Tensor]:
    largest = wide.abs().amax(dim=1) / LARGEST_FLOAT
    scales = torch.where(largest == 0, 1.0, largest)
    return (wide / scales[:, None]).to(torch.float8_e4m3fn).view(torch.uint8), scales


def code_bytes(n_out: int, n_in: int) -> int:
    """Memory of codes and scales, which come on top of the dense weight."""
    return n_out * (n_in + torch.float32.itemsize)


class EightBitFormat(DenseFormat):
    """Layers that are dense in a file; `make` puts codes beside them."""

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of weight, bias, codes and scales."""
        dense = super().n_bytes(prefix, shape, element_bytes)
        return dense + code_bytes(shape.n_out, shape.n_in)

    def shared(self, linear: Linear) -> Linear:
        """Codes of one's own beside another model's weight."""
        return eight_bit_linear(linear)


def eight_bit_format(dense: DenseFormat) -> EightBitFormat:
    """Codes beside layers as another format makes them."""
    return EightBitFormat(lambda weight, bias: eight_bit_linear(dense.make(weight, bias)))
