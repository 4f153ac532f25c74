"""PyTorch backend: CPU and CUDA, vectorised over the batch, never waiting for the device."""

from aerie.kernels.pytorch.table import KERNELS
from aerie.kernels.tensors import adopt

__all__ = ["KERNELS", "adopt"]
