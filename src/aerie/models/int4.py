"""Four-bit codes in one layout, whatever stored them: what GPTQ and AWQ layers become at load.

Codes are laid output by output in steps of two halves (card R18), scales are float32, zero points
a byte each. Inputs that a quantiser dealt to its groups out of order (act-order) are sorted by
group, and the rows are taken in that order.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.kernels.cards.products import step_of
from aerie.models.fields import Fields
from aerie.models.linear import Linear, LinearShape
from aerie.models.loader import Loader
from aerie.models.packed import PackedFormat, PackedLinear, PackedProducts, Stored
from aerie.models.tensors import Offence, TensorSpec

BITS = 4
PER_WORD = 32 // BITS
WHOLE_INPUT = -1  # group_size of one group over the whole input
INT32 = ("I32",)
SCALE_BYTES, ZERO_BYTES = 4, 1


@dataclass(frozen=True, eq=False)
class Int4Codes:
    """A layer's codes as a file holds them, in plain order."""

    codes: Tensor  # [n_out, n_in] u8
    zeros: Tensor  # [groups, n_out] u8
    scales: Tensor  # [groups, n_out] f32
    order: Tensor | None = None  # [n_in] i64, where inputs are not in the order of their groups


@dataclass(frozen=True)
class Int4Format(PackedFormat):
    """How `quantization_config` says the linears are stored: what every method does alike.

    A layer has `qweight`, `qzeros` [groups, n_out / 8] and `scales` [groups, n_out], and a bias.
    """

    group_size: int

    @abstractmethod
    def weight_shape(self, shape: LinearShape) -> tuple[int, int]:
        """Words of `qweight`."""

    @abstractmethod
    def read(self, loader: Loader, prefix: str, shape: LinearShape) -> Int4Codes:
        """A layer's codes in plain order, its zero points and scales; offences are noted."""

    def is_stored(self, prefix: str, stored: Stored) -> bool:
        """Whether a file holds its words."""
        return f"{prefix}.qweight" in stored

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of a layer as it runs: codes, scales and zero points, and the bias."""
        scaled = n_groups_of(self.group_size, shape) * shape.n_out * (SCALE_BYTES + ZERO_BYTES)
        return shape.n_out * shape.n_in // 2 + scaled + shape.has_bias * shape.n_out * element_bytes

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """Packed weight, zero points, scales and, if there is one, the bias."""
        groups = n_groups_of(self.group_size, shape)
        return (
            TensorSpec(f"{prefix}.qweight", self.weight_shape(shape), INT32),
            TensorSpec(f"{prefix}.qzeros", (groups, n_words(shape.n_out)), INT32),
            TensorSpec(f"{prefix}.scales", (groups, shape.n_out)),
            # Older quantisers write a bias of zeros for layers that have none.
            TensorSpec(f"{prefix}.bias", (shape.n_out,), is_optional=not shape.has_bias),
        )

    def build(self, loader: Loader, prefix: str, shape: LinearShape) -> Linear:
        """The layer, its codes sorted by group where they are not."""
        found = self.read(loader, prefix, shape)
        bias = _take_bias(loader, prefix, shape)
        if not self._divides(loader, prefix, shape):
            # Something that can be built: loading ends in the offence that was noted.
            found = Int4Codes(found.codes, found.zeros[:1], found.scales[:1])
        layer = pack_layer(self.products, prefix, found, bias)
        loader.release(f"{prefix}.qweight")
        return layer

    def _divides(self, loader: Loader, prefix: str, shape: LinearShape) -> bool:
        """Whether a layer's inputs fill its groups; noted where they do not."""
        is_even = self.group_size == WHOLE_INPUT or shape.n_in % self.group_size == 0
        if not is_even:
            detail = f"has {shape.n_in} inputs, which groups of {self.group_size} do not divide"
            loader.note(Offence("broken group", prefix, detail))
        return is_even


def pack_layer(
    products: PackedProducts, prefix: str, found: Int4Codes, bias: Tensor | None
) -> PackedLinear:
    """The layer in the layout of its card."""
    codes = found.codes if found.order is None else found.codes[:, found.order.to("cpu")]
    n_groups, n_in = found.scales.shape[0], codes.shape[1]
    size = n_in // n_groups
    weights = {
        "codes": _in_halves(codes, step_of(size)),
        "scales": found.scales.contiguous(),
        "zeros": found.zeros.contiguous(),
    }
    layer = products.make(prefix, "multiply_int4", weights, {"group_size": size})
    return replace(layer, bias=bias, order=found.order)


def _in_halves(codes: Tensor, step: int) -> Tensor:
    """[..., n_in] codes to [..., n_in / 2] bytes: of each step the second half above the first."""
    low, high = codes.unflatten(-1, (-1, 2, step // 2)).unbind(-2)
    both: Tensor = low | (high << BITS)
    return both.flatten(-2)


def words_to_codes(words: Tensor) -> Tensor:
    """[rows, words] i32 to [rows, words * 8] u8, lowest bits first."""
    held = words.contiguous().view(torch.uint8)  # little-endian, as the file is
    return torch.stack((held & 15, held >> BITS), dim=-1).flatten(1)


def n_groups_of(group_size: int, shape: LinearShape) -> int:
    """Groups along a layer's inputs."""
    return 1 if group_size == WHOLE_INPUT else -(-shape.n_in // group_size)


def n_words(n_codes: int) -> int:
    """Words that hold so many codes."""
    return -(-n_codes // PER_WORD)


def _take_bias(loader: Loader, prefix: str, shape: LinearShape) -> Tensor | None:
    """The bias, if the layer has one; one that it must not have is noted unless it is zero."""
    name = f"{prefix}.bias"
    bias = loader.take(name) if loader.has(name) else None
    if bias is None or shape.has_bias:
        return bias
    if bool(bias.any()):
        loader.note(Offence("not zero", name, "but this layer has no bias"))
    return None


def read_group_size(config: Fields, section: Fields, section_name: str) -> int:
    """The group size a config states; problems are noted."""
    size = section.integer("group_size", low=WHOLE_INPUT)
    if size == 0 or (size > 0 and size % PER_WORD):
        config.note(section_name, f"group_size {size} is not a multiple of {PER_WORD}")
        return WHOLE_INPUT
    return size
