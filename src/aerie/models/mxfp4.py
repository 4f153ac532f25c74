"""MXFP4: four-bit floats in blocks of 32 that share a power-of-two scale.

Layout in public checkpoints: `blocks` [experts, n_out, n_in / 32, 16] bytes, the lower half of
a byte being the earlier weight; `scales` [experts, n_out, n_in / 32] bytes, exponents biased by
127 (OCP Microscaling Formats 1.0, E2M1 values and E8M0 scales; 255 stands for NaN).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.kernels.cards.experts import padded_pitch
from aerie.kernels.kernel import Kernel
from aerie.models.routing import Routing

# E2M1: sign, two exponent bits, one mantissa bit.
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALE_BIAS = 127
SCALE_NAN = 255
# Of the largest weight, six times its scale: beyond, float32, bfloat16 or float16 have no number.
LARGEST_SCALES = {torch.float32: 252, torch.bfloat16: 252, torch.float16: 140}


@dataclass(frozen=True, eq=False)
class PackedExpertLinear:
    """One linear layer of every expert, multiplied from its codes; never unpacked as a whole."""

    kernel: Kernel
    blocks: Tensor  # [experts, n_out, n_in / 32, 16] u8
    scales: Tensor  # [experts, n_out, n_in / 32] u8
    bias: Tensor  # [experts, n_out]
    gate: Tensor  # [2] f32, alpha and limit of the gate that follows, or [0]
    largest_scale: int

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        """Rows [rows, n_in] to pairs [pairs, n_out], each through its expert."""
        y: Tensor = self.kernel(
            x=x,
            blocks=self.blocks,
            scales=self.scales,
            bias=self.bias,
            order=routing.order,
            starts=routing.starts,
            gate=self.gate,
            n_active=routing.n_active,
            largest_scale=self.largest_scale,
        ).y
        return y


def pitched(scales: Tensor) -> Tensor:
    """The same scales, on a GPU a pitch apart by which its kernel takes several at once."""
    if not scales.is_cuda:
        return scales  # perhaps the mapped file itself
    n_blocks = scales.shape[2]
    wide = scales.new_zeros((*scales.shape[:2], padded_pitch(n_blocks)))
    wide[..., :n_blocks] = scales
    return wide[..., :n_blocks]


def dequantise(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights [experts, n_out, n_in] in `dtype`; exact in bf16 and fp32.

    One expert at a time, so that the intermediates never exceed one expert's size.
    """
    n_experts, n_out, n_blocks, n_bytes = blocks.shape
    out = torch.empty((n_experts, n_out, n_blocks * n_bytes * 2), dtype=dtype, device=blocks.device)
    for expert_idx in range(n_experts):
        out[expert_idx] = _dequantise_one(blocks[expert_idx], scales[expert_idx])
    return out


def _dequantise_one(blocks: Tensor, scales: Tensor) -> Tensor:
    """[n_out, blocks, bytes] and [n_out, blocks] to [n_out, n_in] f32."""
    signed = MAGNITUDES + tuple(-value for value in MAGNITUDES)
    values = torch.tensor(signed, dtype=torch.float32, device=blocks.device)
    codes = torch.stack((blocks & 0xF, blocks >> 4), dim=-1)  # [n_out, blocks, bytes, 2]
    # A power of two is exact in float32 over the whole range of the scales.
    scale = torch.exp2(scales.float() - SCALE_BIAS)
    scale = torch.where(scales == SCALE_NAN, torch.nan, scale)
    weights = values[codes.int()] * scale[..., None, None]
    return weights.reshape(blocks.shape[0], -1)
