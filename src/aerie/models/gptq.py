"""GPTQ linears: 4-bit weights in groups, which stay packed.

Layout of a layer [n_in, n_out] (AutoGPTQ, GPTQModel), eight 4-bit codes in an int32, lowest
bits first:
    qweight [n_in / 8, n_out]      codes along the input
    qzeros  [groups, n_out / 8]    zero points along the output
    scales  [groups, n_out]        float16
    g_idx   [n_in]                 group of each input; not i // group_size under act-order
    weight[i, o] = scales[g, o] * (code[i, o] - zero[g, o]),  g = g_idx[i]
Format `gptq` (v1) stores each zero point less one, `gptq_v2` as it is.
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
    WHOLE_INPUT,
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
from aerie.models.quantisation import GPTQ, SECTION, read_left_out
from aerie.models.tensors import Offence, TensorSource, TensorSpec

VERSION_1, VERSION_2 = "gptq", "gptq_v2"


@dataclass(frozen=True)
class GPTQFormat:
    """How `quantization_config` says the linears are stored."""

    group_size: int
    zero_offset: int  # 1 where zero points are stored less one
    left_out: LeftOut = NONE
    products: PackedProducts = BY_DEVICE
    method: str = GPTQ

    def with_products(self, products: PackedProducts) -> GPTQFormat:
        """The same, multiplied by these."""
        return replace(self, products=products)

    def is_stored(self, prefix: str, stored: Stored) -> bool:
        """Whether a file holds a layer packed."""
        return f"{prefix}.qweight" in stored

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of a layer as it runs."""
        return int4_bytes(self.group_size, shape, element_bytes)

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """Packed weight, zero points, scales, groups and, if there is one, the bias."""
        groups = n_groups_of(self.group_size, shape)
        packed_in, packed_out = -(-shape.n_in // PER_WORD), -(-shape.n_out // PER_WORD)
        return (
            TensorSpec(f"{prefix}.qweight", (packed_in, shape.n_out), INT32),
            TensorSpec(f"{prefix}.qzeros", (groups, packed_out), INT32),
            TensorSpec(f"{prefix}.scales", (groups, shape.n_out)),
            TensorSpec(f"{prefix}.g_idx", (shape.n_in,), INT32, is_optional=True),
            bias_spec(prefix, shape),
        )

    def build(self, source: TensorSource, prefix: str, shape: LinearShape) -> Linear:
        """The layer, its codes sorted by group where they are not."""
        qweight, qzeros = (source.take(f"{prefix}.{name}") for name in ("qweight", "qzeros"))
        # Masked after the addition: a zero point of 0 is stored as 15 by format v1.
        zeros = (words_to_codes(qzeros)[:, : shape.n_out] + self.zero_offset) & 15
        found = Int4Codes(
            words_to_codes(qweight.t())[:, : shape.n_in],
            zeros,
            source.take(f"{prefix}.scales", torch.float32),
            self._order(source, prefix, shape),
        )
        bias = take_bias(source, prefix, shape)
        if not check_groups(source, prefix, self.group_size, shape):
            found = _one_group(found)
        layer = pack_layer(self.products, prefix, found, bias)
        source.release(f"{prefix}.qweight")
        return layer

    def _order(self, source: TensorSource, prefix: str, shape: LinearShape) -> Tensor | None:
        """The inputs sorted by group; None where they are in order."""
        name = f"{prefix}.g_idx"
        if not source.has(name):
            return None
        groups = source.take(name).cpu().long()
        n_groups = n_groups_of(self.group_size, shape)
        if int(groups.min()) < 0 or int(groups.max()) >= n_groups:
            detail = f"must be group numbers below {n_groups}"
            source.note(Offence("out of range", name, detail))
            return None
        size = shape.n_in if self.group_size == WHOLE_INPUT else self.group_size
        counts = torch.bincount(groups, minlength=n_groups)
        if shape.n_in % size == 0 and bool((counts != size).any()):
            detail = f"deals {int(counts.max())} inputs to a group of {size}"
            source.note(Offence("uneven groups", name, detail))
            return None
        order = torch.argsort(groups, stable=True)
        is_sorted = torch.equal(order, torch.arange(len(order)))
        return None if is_sorted else order.to(source.device)


def _one_group(found: Int4Codes) -> Int4Codes:
    """Something that can be built where the offence was noted: loading ends in its error."""
    return Int4Codes(found.codes, found.zeros[:1], found.scales[:1])


def read_gptq(config: Fields) -> GPTQFormat:
    """The format `quantization_config` describes; problems are noted."""
    section = config.section(SECTION)
    bits = section.integer("bits")
    if bits != BITS:
        config.note(SECTION, f"{bits}-bit GPTQ is not supported, only {BITS}-bit")
    layout = section.text("checkpoint_format", VERSION_1)
    if layout not in (VERSION_1, VERSION_2):
        known = f"{VERSION_1}, {VERSION_2}"
        config.note(SECTION, f"checkpoint_format {layout!r}; known: {known}")
    size = read_group_size(config, section, SECTION)
    offset = 0 if layout == VERSION_2 else 1
    return GPTQFormat(size, offset, read_left_out(section))
