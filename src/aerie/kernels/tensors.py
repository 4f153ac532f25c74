"""How the backends that compute on torch tensors take arrays of other libraries in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from aerie.errors import UsageError


def adopt(array: Any, device: str, is_written: bool) -> torch.Tensor:
    """Take tensors of the device as they are and NumPy arrays by sharing or copying them.

    On a CPU a NumPy array is shared, so that writes reach the caller. On an accelerator it is
    copied, and refused where it would be written: the caller would never see the result.
    """
    if isinstance(array, torch.Tensor):
        if array.device.type == device or array.device == torch.device(device):
            return array
        raise UsageError(
            f"the backend was loaded for {device}, the tensor lives on {array.device}; move it"
            f" with .to({device!r}), or load the backend for {array.device.type!r}"
        )
    if not isinstance(array, np.ndarray):
        raise UsageError(f"this backend takes tensors and NumPy arrays, got {type(array)}")
    if device == "cpu":
        return _shared(array, is_written)
    if is_written:
        raise UsageError(
            f"this array is written in place, but NumPy arrays are copied to {device};"
            f" pass a tensor on {device}"
        )
    return _shared(array, is_written).to(device)


def _shared(array: np.ndarray[Any, Any], is_written: bool) -> torch.Tensor:
    # torch shares neither read-only memory nor memory walked backwards.
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        if is_written:
            raise UsageError("this array is written in place and must be writable, strides >= 0")
        array = array.copy()
    tensor = torch.from_numpy(array)
    # NumPy has no bfloat16: its bit patterns travel as uint16.
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
