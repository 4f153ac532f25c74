"""The PyTorch backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import implementations_of

KERNELS = implementations_of("aerie.kernels.pytorch")
