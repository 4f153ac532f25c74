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
from aerie.models.routing import Routing


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
    """One linear layer of every expert, however it is stored, and what follows it."""

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        """Rows [rows, n_in] to pairs [pairs, n_out], each through its expert."""
        ...


@dataclass(frozen=True, eq=False)
class ExpertLinear:
    """One linear layer of every expert; the host reads how many rows each has."""

    weight: Tensor  # [experts, n_out, n_in], any strides
    bias: Tensor  # [experts, n_out]
    activation: ClampedGate | None = None

    def __call__(self, x: Tensor, routing: Routing) -> Tensor:
        """Rows [rows, n_in] to pairs [pairs, n_out], each through its expert."""
        edges: Sequence[int] = routing.starts.tolist()
        width = self.weight.shape[1] // (1 if self.activation is None else 2)
        out = x.new_empty((len(routing.order), width))
        for expert_idx, part in enumerate(map(slice, edges, edges[1:])):
            if part.start < part.stop:
                own = routing.order[part].long()
                rows = x[own // routing.n_active]
                wide = functional.linear(rows, self.weight[expert_idx], self.bias[expert_idx])
                out[own] = wide if self.activation is None else self.activation(wide)
        return out


@dataclass(frozen=True, eq=False)
class Experts:
    """Each row goes through its best `n_active` experts, mixed by a softmax over those alone."""

    router: Linear
    gate_up: ExpertProduct  # gated
    down: ExpertProduct
    n_active: int
    ops: LayerOps = TORCH_OPS

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, hidden] to [rows, hidden]."""
        routing = self.ops.route(self.router(x), self.n_active)
        pairs = self.down(self.gate_up(x, routing), routing.of_pairs)
        return self.ops.mix(pairs, routing.shares)
