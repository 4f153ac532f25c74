"""GPTQ linears: 4-bit weights in groups, unpacked once at load.

Layout of a layer [n_in, n_out] (AutoGPTQ, GPTQModel), eight 4-bit codes in an int32, lowest
bits first:
    qweight [n_in / 8, n_out]      codes along the input
    qzeros  [groups, n_out / 8]    zero points along the output
    scales  [groups, n_out]        float16
    g_idx   [n_in]                 group of each input; not i // group_size under act-order
    weight[i, o] = scales[g, o] * (code[i, o] - zero[g, o]),  g = g_idx[i]
Format `gptq` (v1) stores each zero point less one, `gptq_v2` as it is.

The layer that comes out is dense: the files are small, the memory and the speed are those of
unquantised weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.models.fields import Fields
from aerie.models.linear import DENSE, DenseFormat, Linear, LinearShape
from aerie.models.quantisation import GPTQ, SECTION, read_method
from aerie.models.tensors import Offence, TensorSource, TensorSpec

BITS = 4
PER_WORD = 32 // BITS
CODE_MASK = (1 << BITS) - 1
WHOLE_INPUT = -1  # group_size of one group over the whole input

VERSION_1, VERSION_2 = "gptq", "gptq_v2"
INT32 = ("I32",)


@dataclass(frozen=True)
class GPTQFormat:
    """How `quantization_config` says the linears are stored."""

    group_size: int
    zero_offset: int  # 1 where zero points are stored less one
    dense: DenseFormat = DENSE  # how the unpacked layer is multiplied

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """Packed weight, zero points, scales, groups and, if there is one, the bias."""
        groups = self._n_groups(shape)
        packed_in, packed_out = -(-shape.n_in // PER_WORD), -(-shape.n_out // PER_WORD)
        specs = (
            TensorSpec(f"{prefix}.qweight", (packed_in, shape.n_out), INT32),
            TensorSpec(f"{prefix}.qzeros", (groups, packed_out), INT32),
            TensorSpec(f"{prefix}.scales", (groups, shape.n_out)),
            TensorSpec(f"{prefix}.g_idx", (shape.n_in,), INT32, is_optional=True),
        )
        # Older quantisers write a bias of zeros for layers that have none.
        bias = TensorSpec(f"{prefix}.bias", (shape.n_out,), is_optional=not shape.has_bias)
        return (*specs, bias)

    def build(self, source: TensorSource, prefix: str, shape: LinearShape) -> Linear:
        """The unpacked layer in the run's dtype; float32 in between, rounded once."""
        scales = source.take(f"{prefix}.scales", torch.float32)
        weight = dequantise(
            source.take(f"{prefix}.qweight"),
            source.take(f"{prefix}.qzeros"),
            scales,
            self._groups(source, prefix, shape),
            self.zero_offset,
        )
        name = f"{prefix}.bias"
        bias = source.take(name) if source.has(name) else None
        if bias is not None and not shape.has_bias:
            if bool(bias.any()):
                source.note(Offence("not zero", name, "but this layer has no bias"))
            bias = None
        return self.dense.make(source.finish(f"{prefix}.scales", weight), bias)

    def _n_groups(self, shape: LinearShape) -> int:
        size = shape.n_in if self.group_size == WHOLE_INPUT else self.group_size
        return -(-shape.n_in // size)

    def _groups(self, source: TensorSource, prefix: str, shape: LinearShape) -> Tensor:
        name = f"{prefix}.g_idx"
        if not source.has(name):
            size = shape.n_in if self.group_size == WHOLE_INPUT else self.group_size
            return torch.arange(shape.n_in) // size
        groups = source.take(name).cpu()
        n_groups = self._n_groups(shape)
        if int(groups.min()) < 0 or int(groups.max()) >= n_groups:
            detail = f"must be group numbers below {n_groups}"
            source.note(Offence("out of range", name, detail))
            return groups.clamp(0, n_groups - 1)
        return groups


def read_gptq(config: Fields) -> GPTQFormat | None:
    """The format `quantization_config` describes, None without one; problems are noted."""
    if read_method(config, GPTQ) is None:
        return None
    section = config.section(SECTION)
    bits = section.integer("bits")
    if bits != BITS:
        config.note(SECTION, f"{bits}-bit GPTQ is not supported, only {BITS}-bit")
    layout = section.text("checkpoint_format", VERSION_1)
    if layout not in (VERSION_1, VERSION_2):
        known = f"{VERSION_1}, {VERSION_2}"
        config.note(SECTION, f"checkpoint_format {layout!r}; known: {known}")
    size = section.integer("group_size", low=WHOLE_INPUT)
    if size == 0 or (size > 0 and size % PER_WORD):
        config.note(SECTION, f"group_size {size} is not a multiple of {PER_WORD}")
        size = WHOLE_INPUT
    return GPTQFormat(size, zero_offset=0 if layout == VERSION_2 else 1)


def dequantise(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, groups: Tensor, zero_offset: int
) -> Tensor:
    """The weight [n_out, n_in] in the dtype of `scales`; see the head of this file."""
    n_in, n_out = groups.shape[0], scales.shape[1]
    codes = _unpack(qweight.t()).t()[:n_in]  # [n_in, n_out]
    # Masked after the addition: a zero point of 0 is stored as 15 by format v1.
    zeros = (_unpack(qzeros)[:, :n_out] + zero_offset) & CODE_MASK  # [groups, n_out]
    picked = groups.long().to(scales.device)
    weight = (codes - zeros[picked]).to(scales.dtype) * scales[picked]
    return weight.t().contiguous()


def _unpack(words: Tensor) -> Tensor:
    """[rows, words] i32 to [rows, words * 8] i32 codes; the shift's sign is masked away."""
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32, device=words.device)
    codes = (words.unsqueeze(-1) >> shifts) & CODE_MASK
    return codes.flatten(-2)
