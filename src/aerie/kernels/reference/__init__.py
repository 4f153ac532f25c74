"""NumPy reference: the living definition of the kernels, obvious first.

Where what is obvious is quick as well, an engine on a CPU runs it as it is.
"""

from aerie.kernels.host import adopt
from aerie.kernels.reference.table import KERNELS

__all__ = ["KERNELS", "adopt"]
