"""How the backends that compute on torch tensors take arrays of other libraries in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.errors import KernelArgumentError


def adopt(array: Any, device: str, is_written: bool) -> Tensor:
    """Take tensors of the device as they are and NumPy arrays by sharing or copying them.

    On a CPU a NumPy array is shared, so that writes reach the caller. On an accelerator it is
    copied, and refused where it would be written: the caller would never see the result.
    """
    if not isinstance(array, Tensor):
        return _from_numpy(array, device, is_written)
    tensor: Tensor = array
    place = tensor.device
    is_there = tensor.is_cpu if device == "cpu" else device in (place.type, str(place))
    if not is_there or tensor.layout is not torch.strided or tensor.is_neg():
        raise KernelArgumentError(f"this backend takes plain tensors on {device}, got another")
    if tensor.dtype is torch.uint16:
        tensor = tensor.view(torch.bfloat16)
    return tensor.detach() if tensor.requires_grad else tensor


def _from_numpy(array: Any, device: str, is_written: bool) -> Tensor:
    if not isinstance(array, np.ndarray):
        raise KernelArgumentError(f"this backend takes tensors and NumPy arrays, got {type(array)}")
    is_forward = min(array.strides, default=0) >= 0
    if not is_forward and array.flags.c_contiguous:
        # The stride along one entry may be any number; this gives it an ordinary one.
        array, is_forward = np.ndarray(array.shape, array.dtype, array), True
    # torch shares neither read-only memory nor memory walked backwards or in crooked steps.
    is_crooked = any(stride % array.itemsize for stride in array.strides)
    is_shared = array.flags.writeable and is_forward and not is_crooked
    if is_written and not (is_shared and device == "cpu"):
        raise KernelArgumentError(f"an array written in place cannot be shared on {device}")
    tensor = torch.from_numpy(array if is_shared else array.copy())
    # NumPy has no bfloat16: its bit patterns travel as uint16.
    return (tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor).to(device)
