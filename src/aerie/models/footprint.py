"""What a decoder's weights take in memory, known from its config, before any is taken."""

from __future__ import annotations

import math
import os

import torch

from aerie.errors import UsageError
from aerie.models.blueprint import expected_tensors, layer_linears, layer_prefix
from aerie.models.geometry import Geometry
from aerie.models.linear import DENSE, DenseFormat, LinearFormat, LinearShape
from aerie.models.tensors import BYTES, TensorSpec

GIGABYTE = 1e9


def weight_bytes(geometry: Geometry, dtype: torch.dtype, linears: LinearFormat = DENSE) -> int:
    """Bytes of the weights as they run: packed ones stay packed."""
    specs = [s for s in expected_tensors(geometry, _Without()) if not s.is_optional]
    sizes = [math.prod(s.shape) * (1 if s.dtypes == BYTES else dtype.itemsize) for s in specs]
    return sum(sizes) + sum(
        linears.n_bytes(f"{layer_prefix(layer_idx)}.{name}", shape, dtype.itemsize)
        for layer_idx in range(geometry.n_layers)
        for name, shape in layer_linears(geometry).items()
    )


class _Without(DenseFormat):
    """Of a blueprint, everything but the linears of its layers."""

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """None."""
        return ()


def refuse_too_large(
    geometry: Geometry, dtype: torch.dtype, device: torch.device, linears: LinearFormat = DENSE
) -> None:
    """Raise UsageError if a copy of the weights cannot fit into the device's memory at all."""
    needed, free = weight_bytes(geometry, dtype, linears), device_bytes(device)
    if needed > free:
        name = str(dtype).removeprefix("torch.")
        raise UsageError(
            f"the weights take {needed / GIGABYTE:.1f} GB in {name}, {device} has "
            f"{free / GIGABYTE:.1f} GB; use a smaller model, a narrower dtype or another device"
        )


def device_bytes(device: torch.device) -> int:
    """Memory a model could fill: what is free on a GPU, all there is on the host."""
    if device.type == "cuda":
        # What torch keeps for itself after earlier tensors is as good as free.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
