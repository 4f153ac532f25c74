"""NumPy backend for engines on a CPU: vectorised, few operations, small arrays first."""

from aerie.kernels.host import adopt
from aerie.kernels.numpy_cpu.table import KERNELS

__all__ = ["KERNELS", "adopt"]
