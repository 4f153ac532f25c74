"""What a device does at best, measured here; needs nothing but torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aerie.bench.turns import in_turns, timed

COPY_BYTES = {"cuda": 4 << 30, "cpu": 64 << 20}
N_CALLS = 10


@dataclass(frozen=True)
class Ceilings:
    """What this device does at best, measured here."""

    copy_gbps: float  # a large copy, bytes read and written
    matmul_tflops: float  # a large product in bfloat16


def copy_bandwidth(device: str) -> dict[str, Any]:
    """Bytes read and written a second by a large copy: the ceiling of everything else."""
    size = COPY_BYTES[device.partition(":")[0]]
    source = torch.randint(0, 127, (size,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    seconds = _seconds(lambda: target.copy_(source), device)
    return {"bytes": 2 * size, "seconds": seconds, "gbps": 2 * size / seconds / 1e9}


def matmul_tflops(device: str) -> float:
    """The fastest large product in bfloat16 this device does: the ceiling of reading prompts."""
    is_gpu = device.startswith("cuda")
    size = 8192 if is_gpu else 256
    dtype = torch.bfloat16 if is_gpu else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _seconds(lambda: a @ b, device) / 1e12


def _seconds(call: Callable[[], object], device: str) -> float:
    """The median of some calls behind two that warm up."""
    return statistics.median(in_turns({"": timed(call, device)}, N_CALLS, 2)[""])
