"""How wide the delicate steps are computed: float32 at least."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """The tensor in float32; float64 stays, for that is what a reference run is for."""
    return x if x.dtype == torch.float64 else x.float()
