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

from dataclasses import dataclass, field

import torch
from torch import Tensor

from aerie.models.fields import Fields
from aerie.models.int4 import (
    BITS,
    PER_WORD,
    Int4Codes,
    Int4Format,
    n_words,
    read_group_size,
    words_to_codes,
)
from aerie.models.linear import LinearShape
from aerie.models.loader import Loader
from aerie.models.quantisation import AWQ, SECTION, read_left_out

VERSION = "gemm"
# Where the outputs of a word stand in it, from the lowest bits on.
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class AWQFormat(Int4Format):
    """Codes along the output, interleaved."""

    method: str = field(default=AWQ, kw_only=True)

    def weight_shape(self, shape: LinearShape) -> tuple[int, int]:
        """Inputs, words along the outputs."""
        return shape.n_in, n_words(shape.n_out)

    def read(self, loader: Loader, prefix: str, shape: LinearShape) -> Int4Codes:
        """The layer, its outputs in order."""
        codes, zeros = (
            in_order(loader.take(f"{prefix}.{name}"))[:, : shape.n_out]
            for name in ("qweight", "qzeros")
        )
        return Int4Codes(codes.t(), zeros, loader.take(f"{prefix}.scales", torch.float32))


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
    size = read_group_size(config, section, SECTION)
    return AWQFormat(size, left_out=read_left_out(section))
