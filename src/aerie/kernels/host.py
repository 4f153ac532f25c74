"""How the backends that compute on NumPy arrays take tensors in."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.errors import KernelArgumentError


def adopt(array: Any, device: str, is_written: bool) -> NDArray[Any]:
    """NumPy arrays as they are, tensors in the memory of a CPU as views; nothing else."""
    if type(array) is np.ndarray:
        return array
    try:
        shared: NDArray[Any] = array.numpy()
        return shared
    except (AttributeError, TypeError, RuntimeError):
        return _adopt_slowly(array, device)


def _adopt_slowly(array: Any, device: str) -> NDArray[Any]:
    """What `Tensor.numpy` does not take: bfloat16, tensors that ask for gradients, mapped files."""
    if isinstance(array, np.ndarray):
        return array.view(np.ndarray)
    # The tensor proves that torch is loaded, so this module need not import it.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor) or not array.is_cpu:
        raise KernelArgumentError(f"arrays must be in the memory of a {device}, got {type(array)}")
    array = array.detach()
    if array.dtype is torch.bfloat16:
        # NumPy has no bfloat16: its bit patterns travel as uint16.
        array = array.view(torch.uint16)
    return np.asarray(array.numpy())
