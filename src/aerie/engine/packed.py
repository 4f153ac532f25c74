"""Arrays that share one buffer, so that one copy moves all of them between host and device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 16  # bytes: every array begins at a multiple, as views and vector loads want it

Shapes = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True, eq=False)
class Packed:
    """Zeros at first."""

    flat: Tensor  # [bytes] u8
    arrays: dict[str, Tensor]

    @classmethod
    def empty(cls, shapes: Shapes, device: str, is_pinned: bool = False) -> Packed:
        """Arrays of these dtypes and shapes, by name."""
        starts, size = {}, 0
        for name, (dtype, shape) in shapes.items():
            starts[name] = size
            size += -(-prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        flat = torch.zeros(size, dtype=torch.uint8, device=device, pin_memory=is_pinned)
        arrays = {
            name: flat[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for (name, (dtype, shape)), start in zip(shapes.items(), starts.values(), strict=True)
        }
        return cls(flat, arrays)

    @cached_property
    def host(self) -> dict[str, NDArray[Any]]:
        """The arrays as NumPy's, where they are the host's: cheaper to fill in piece by piece."""
        return {name: array.numpy() for name, array in self.arrays.items()}
