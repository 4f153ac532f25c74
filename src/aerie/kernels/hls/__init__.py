"""HLS C++ in C-simulation: the kernels as hardware would compute them, called through ctypes."""

from aerie.kernels.hls.bind import adopt
from aerie.kernels.hls.limits import LIMITS
from aerie.kernels.hls.table import KERNELS

__all__ = ["KERNELS", "LIMITS", "adopt"]
