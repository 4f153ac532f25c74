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

from dataclasses import dataclass, field

import torch
from torch import Tensor

from aerie.models.fields import Fields
from aerie.models.int4 import (
    BITS,
    INT32,
    WHOLE_INPUT,
    Int4Codes,
    Int4Format,
    n_groups_of,
    n_words,
    read_group_size,
    words_to_codes,
)
from aerie.models.linear import LinearShape
from aerie.models.loader import Loader
from aerie.models.quantisation import GPTQ, SECTION, read_left_out
from aerie.models.tensors import Offence, TensorSpec

VERSION_1, VERSION_2 = "gptq", "gptq_v2"


@dataclass(frozen=True)
class GPTQFormat(Int4Format):
    """Codes along the input, and groups that may be in any order."""

    method: str = field(default=GPTQ, kw_only=True)
    zero_offset: int = 1  # 1 where zero points are stored less one

    def weight_shape(self, shape: LinearShape) -> tuple[int, int]:
        """Words along the inputs, outputs."""
        return n_words(shape.n_in), shape.n_out

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """And the group of each input, where they are out of order."""
        groups = TensorSpec(f"{prefix}.g_idx", (shape.n_in,), INT32, is_optional=True)
        return (*super().tensors(prefix, shape), groups)

    def read(self, loader: Loader, prefix: str, shape: LinearShape) -> Int4Codes:
        """The layer as it is stored, and the order of its inputs."""
        qweight, qzeros = (loader.take(f"{prefix}.{name}") for name in ("qweight", "qzeros"))
        # Masked after the addition: a zero point of 0 is stored as 15 by format v1.
        zeros = (words_to_codes(qzeros)[:, : shape.n_out] + self.zero_offset) & 15
        codes = words_to_codes(qweight.t())[:, : shape.n_in]
        scales = loader.take(f"{prefix}.scales", torch.float32)
        return Int4Codes(codes, zeros, scales, self._order(loader, prefix, shape))

    def _order(self, loader: Loader, prefix: str, shape: LinearShape) -> Tensor | None:
        """The inputs sorted by group; None where they are in order."""
        name = f"{prefix}.g_idx"
        if not loader.has(name):
            return None
        groups = loader.take(name).cpu().long()
        n_groups = n_groups_of(self.group_size, shape)
        if int(groups.min()) < 0 or int(groups.max()) >= n_groups:
            detail = f"must be group numbers below {n_groups}"
            loader.note(Offence("out of range", name, detail))
            return None
        size = shape.n_in if self.group_size == WHOLE_INPUT else self.group_size
        counts = torch.bincount(groups, minlength=n_groups)
        if shape.n_in % size == 0 and bool((counts != size).any()):
            detail = f"deals {int(counts.max())} inputs to a group of {size}"
            loader.note(Offence("uneven groups", name, detail))
            return None
        order = torch.argsort(groups, stable=True)
        is_sorted = torch.equal(order, torch.arange(len(order)))
        return None if is_sorted else order.to(loader.device)


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
    return GPTQFormat(size, left_out=read_left_out(section), zero_offset=offset)
