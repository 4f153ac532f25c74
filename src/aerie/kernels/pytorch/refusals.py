"""Status words of the PyTorch backend: many checks combined without reading any of them."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.status import Status


class Refusals:
    """The checks of one call, added in the card's order; the first that applies wins."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self._found: list[tuple[Status, Tensor, Tensor | int]] = []
        self.refused = torch.zeros(batch, dtype=torch.bool, device=device)  # [B]
        """Requests that some check so far refuses."""

    def add(self, code: Status, applies: Tensor, value: Tensor | int) -> None:
        """Refuse the requests where `applies[B]` holds; `value[B]` is the offending value."""
        self._found.append((code, applies, value))
        self.refused = self.refused | applies

    def words(self) -> dict[str, Tensor]:
        """`status[B]` and `detail[B]`, by name."""
        status = torch.zeros_like(self.refused, dtype=torch.int32)
        detail = torch.zeros_like(self.refused, dtype=torch.int64)
        # Backwards, so that an earlier check overwrites a later one.
        for code, applies, value in reversed(self._found):
            status.masked_fill_(applies, code.value)
            if isinstance(value, Tensor):
                detail = torch.where(applies, value, detail)
            else:
                detail.masked_fill_(applies, value)
        return {"status": status, "detail": detail}


def no_refusals(batch: int, device: torch.device) -> dict[str, Tensor]:
    """The status words of a call in which nothing can be refused."""
    return Refusals(batch, device).words()


def check_range(refusals: Refusals, code: Status, values: Tensor, low: int, high: int) -> None:
    """Refuse requests with an entry of `values[B, n]` outside [low, high); n is at least 1."""
    smallest, largest = values.aminmax(dim=1)
    is_low = smallest < low
    refusals.add(code, is_low | (largest >= high), torch.where(is_low, smallest, largest))


def first_true(mask: Tensor) -> Tensor:
    """Index of the first true entry of each row of `mask[B, n]`, n at least 1; 0 if none is."""
    # argmax has no kernel for bool, and of equal maxima it returns the first.
    return mask.byte().argmax(dim=1)
