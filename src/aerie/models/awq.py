"""AWQ linears: 4-bit weights in groups with zero points, which stay packed.

Layout of a layer [n_in, n_out] (AutoAWQ, version gemm), eight 4-bit codes in an int32:
    qweight [n_in, n_out / 8]      codes along the output
    qzeros  [groups, n_out / 8]    zero points along the output
    scales  [groups, n_out]        float16
    weight[i, o] = scales[g, o] * (code[i, o] - zero[g, o]),  g = i // group_size
The eight outputs of a word are interleaved: from the lowest bits on it holds outputs 0, 2, 4, 6, 1,
3, 5, 7 of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.models.fields import Fields
from aerie.models.int4 import (
    BITS,
    INT32,
    PER_WORD,
    Int4Codes,
    bias_spec,
    check_groups,
    int4_bytes,
    n_groups_of,
    pack_layer,
    read_group_size,
    take_bias,
    words_to_codes,
)
from aerie.models.linear import Linear, LinearShape
from aerie.models.packed import BY_DEVICE, NONE, LeftOut, PackedProducts, Stored
from aerie.models.quantisation import AWQ, SECTION, read_left_out
from aerie.models.tensors import TensorSource, TensorSpec

VERSION = "gemm"
# Where the outputs of a word stand in it, from the lowest bits on.
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class AWQFormat:
    """How `quantization_config` says the linears are stored."""

    group_size: int
    left_out: LeftOut = NONE
    products: PackedProducts = BY_DEVICE
    method: str = AWQ

    def with_products(self, products: PackedProducts) -> AWQFormat:
        """The same, multiplied by these."""
        return replace(self, products=products)

    def is_stored(self, prefix: str, stored: Stored) -> bool:
        """Whether a file holds a layer packed."""
        return f"{prefix}.qweight" in stored

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of a layer as it runs."""
        return int4_bytes(self.group_size, shape, element_bytes)

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """Packed weight, zero points, scales and, if there is one, the bias."""
        groups, packed_out = n_groups_of(self.group_size, shape), -(-shape.n_out // PER_WORD)
        return (
            TensorSpec(f"{prefix}.qweight", (shape.n_in, packed_out), INT32),
            TensorSpec(f"{prefix}.qzeros", (groups, packed_out), INT32),
            TensorSpec(f"{prefix}.scales", (groups, shape.n_out)),
            bias_spec(prefix, shape),
        )

    def build(self, source: TensorSource, prefix: str, shape: LinearShape) -> Linear:
        """The layer."""
        codes, zeros = (
            in_order(source.take(f"{prefix}.{name}"))[:, : shape.n_out]
            for name in ("qweight", "qzeros")
        )
        scales = source.take(f"{prefix}.scales", torch.float32)
        bias = take_bias(source, prefix, shape)
        if not check_groups(source, prefix, self.group_size, shape):
            scales, zeros = scales[:1], zeros[:1]  # loading ends in the offence that was noted
        layer = pack_layer(self.products, prefix, Int4Codes(codes.t(), zeros, scales), bias)
        source.release(f"{prefix}.qweight")
        return layer


def in_order(words: Tensor) -> Tensor:
    """[rows, words] i32 to [rows, words * 8] u8, the outputs of each word in order."""
    by_word: Tensor = words_to_codes(words).unflatten(1, (-1, PER_WORD))
    return by_word[:, :, list(PLACES)].flatten(1)


def read_awq(config: Fields) -> AWQFormat:
    """The format `quantization_config` describes; problems are noted."""
    section = config.section(SECTION)
    bits = section.integer("w_bit" if section.has("w_bit") else "bits")
    if bits != BITS:
        config.note(SECTION, f"{bits}-bit AWQ is not supported, only {BITS}-bit")
    version = section.text("version", VERSION).lower()
    if version != VERSION:
        config.note(SECTION, f"version {version!r} of AWQ is not supported, only {VERSION!r}")
    if not section.boolean("zero_point", True):
        config.note(SECTION, "AWQ without zero points is not supported")
    return AWQFormat(read_group_size(config, section, SECTION), read_left_out(section))
