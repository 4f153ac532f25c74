"""NumPy backend for engines on a CPU: vectorised, few operations, small arrays first."""

from aerie.kernels.numpy_cpu.table import KERNELS, adopt

__all__ = ["KERNELS", "adopt"]
