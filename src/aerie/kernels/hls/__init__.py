"""HLS C++ in C-simulation: the kernels as hardware would compute them, called through ctypes."""

from aerie.kernels.hls.limits import LIMITS
from aerie.kernels.hls.table import KERNELS
from aerie.kernels.host import adopt

__all__ = ["KERNELS", "LIMITS", "adopt"]
