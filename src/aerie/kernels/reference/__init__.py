"""NumPy reference: the living definition of the kernels. Obvious first, fast never."""

from aerie.kernels.reference.table import KERNELS, adopt

__all__ = ["KERNELS", "adopt"]
