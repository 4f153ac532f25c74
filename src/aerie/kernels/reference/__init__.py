"""NumPy reference: the living definition of the kernels. Obvious first, fast never."""

from aerie.kernels.host import adopt
from aerie.kernels.reference.table import KERNELS

__all__ = ["KERNELS", "adopt"]
