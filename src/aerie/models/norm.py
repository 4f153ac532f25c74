"""Root-mean-square normalisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.models.precision import widen


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """Normalises the last axis; computed in float32 and rounded once, whatever the run's dtype."""

    weight: Tensor  # [width] f32
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Weight times x over its root mean square, in the dtype of x."""
        wide = widen(x)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)
