"""A backend outside aerie: two kernels on a made-up chip, the rest from the reference."""

from aerie.kernels.reference import adopt
from toy_accelerator.kernels import BACKEND, CHIP, KERNELS, LIMITS

__all__ = ["BACKEND", "CHIP", "KERNELS", "LIMITS", "adopt"]
