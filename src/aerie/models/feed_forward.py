"""Feed-forward blocks: the gated MLP, and a routed mixture of clamped gated experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from aerie.models.layer_ops import TORCH_OPS, LayerOps
from aerie.models.linear import Linear, Projections
from aerie.models.precision import widen


class FeedForward(Protocol):
    """The second half of a layer."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, hidden] to [rows, hidden]."""
        ...


@dataclass(frozen=True, eq=False)
class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    gate_up: Projections
    down: Linear
    ops: LayerOps = TORCH_OPS

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, hidden] to [rows, hidden]."""
        return self.down(self.gate_up.gated(x, self.ops.gate))


@dataclass(frozen=True)
class ClampedGate:
    """The experts' activation: gate * sigmoid(alpha * gate) * (up + 1), both clamped."""

    alpha: float
    limit: float

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[rows, 2 * width], gate and up interleaved, to [rows, width]."""
        gate = gate_up[..., 0::2].clamp(max=self.limit)
        up = gate_up[..., 1::2].clamp(min=-self.limit, max=self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


class ExpertProduct(Protocol):
    """One linear layer of every expert, however it is stored."""

    def __call__(self, x: Tensor, expert_idx: int) -> Tensor:
        """[rows, n_in] to [rows, n_out] through one expert."""
        ...


@dataclass(frozen=True, eq=False)
class ExpertLinear:
    """One linear layer of every expert."""

    weight: Tensor  # [experts, n_out, n_in], any strides
    bias: Tensor  # [experts, n_out]

    def __call__(self, x: Tensor, expert_idx: int) -> Tensor:
        """[rows, n_in] to [rows, n_out] through one expert."""
        return functional.linear(x, self.weight[expert_idx], self.bias[expert_idx])


@dataclass(frozen=True, eq=False)
class Experts:
    """Each row goes through its best `n_active` experts, mixed by a softmax over those alone."""

    router: Linear
    gate_up: ExpertProduct
    down: ExpertProduct
    activation: ClampedGate
    n_active: int

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, hidden] to [rows, hidden]; one host read for the experts' row counts."""
        logits = self.router(x)  # [rows, experts]
        best, chosen = torch.topk(logits, self.n_active, dim=-1)
        shares = torch.softmax(widen(best), dim=-1)  # [rows, active]
        # Sorted by expert, every expert's rows are one slice; stable, so the order is fixed.
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        counts: Sequence[int] = torch.bincount(flat, minlength=logits.shape[1]).tolist()
        gathered = x[order // self.n_active]
        out = torch.empty_like(gathered)
        start = 0
        for expert_idx, count in enumerate(counts):
            if count:
                part = slice(start, start + count)
                wide = self.activation(self.gate_up(gathered[part], expert_idx))
                out[order[part]] = self.down(wide, expert_idx)
                start += count
        # Mixed row by row in rank order: the sum does not depend on who else is in the batch.
        mixed = (widen(out.view(*chosen.shape, x.shape[-1])) * shares[..., None]).sum(dim=1)
        return mixed.to(x.dtype)
