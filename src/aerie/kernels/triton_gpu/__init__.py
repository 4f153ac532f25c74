"""Triton backend: one or two launches per kernel, no host reads; the rest comes from PyTorch."""

from aerie.kernels.triton_gpu.launch import adopt, refuse_device
from aerie.kernels.triton_gpu.table import KERNELS

__all__ = ["KERNELS", "adopt", "refuse_device"]
