"""Which experts a row goes through: the definition, in PyTorch, without a read by the host."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.models.precision import widen


@dataclass(frozen=True, eq=False)
class Routing:
    """Pairs of a row and an expert, sorted by expert; pair p is of row p // n_active."""

    order: Tensor  # [pairs] i32
    starts: Tensor  # [experts + 1] i32, where the pairs of each expert begin
    shares: Tensor  # [rows, active] f32, what each pair is of its row
    n_active: int

    @property
    def of_pairs(self) -> Routing:
        """The same where every pair has a row of its own."""
        return replace(self, n_active=1)


def route(logits: Tensor, n_active: int) -> Routing:
    """Every row [experts] through its best experts, shared by a softmax over those alone."""
    best, chosen = torch.topk(logits, n_active, dim=-1)
    shares = torch.softmax(widen(best), dim=-1)
    # Stable, so that the rows of an expert keep their order; in 16 bits, for a GPU sorts by digits.
    by_expert, order = torch.sort(chosen.flatten().to(torch.int16), stable=True)
    experts = torch.arange(logits.shape[1] + 1, dtype=torch.int16, device=logits.device)
    starts = torch.searchsorted(by_expert, experts, out_int32=True)
    return Routing(order.int(), starts, shares, n_active)


def mix(outputs: Tensor, shares: Tensor) -> Tensor:
    """Pairs [rows * active, width] to rows [rows, width]; in rank order, whatever the batch is."""
    pairs = widen(outputs.unflatten(0, shares.shape))
    return (pairs * shares[..., None]).sum(dim=1).to(outputs.dtype)
