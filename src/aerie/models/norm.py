"""Root-mean-square normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aerie.models.layer_ops import TORCH_OPS, LayerOps


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """Normalises the last axis; computed in float32 and rounded once, whatever the run's dtype."""

    weight: Tensor  # [width] f32
    eps: float
    ops: LayerOps = TORCH_OPS

    def __call__(self, x: Tensor) -> Tensor:
        """Weight times x over its root mean square, in the dtype of x."""
        return self.ops.normalise(x, self.weight, self.eps)

    def after(self, hidden: Tensor, pending: Tensor | None) -> tuple[Tensor, Tensor]:
        """The residual stream once what is pending is added, and its norm; never in place."""
        if pending is None:
            return hidden, self(hidden)
        return self.ops.add_normalise(hidden, pending, self.weight, self.eps)
