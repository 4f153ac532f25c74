"""Arrays between backends: to a device, back to NumPy, and their distance in ulps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.kernel import Kernel
from aerie.kernels.numpy_types import widened
from aerie.kernels.registry import Kernels

_BITS: dict[np.dtype[Any], Any] = {
    np.dtype(np.float32): np.int32,
    np.dtype(np.float16): np.int16,
}
_MANTISSAS: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): 23,
    np.dtype(np.float16): 10,
    np.dtype(np.uint16): 7,
}


def on_device(value: Any, device: str) -> Any:
    """A NumPy array as a tensor on an accelerator; on a CPU, and for scalars, the value itself."""
    if device == "cpu" or not isinstance(value, np.ndarray):
        return value
    import torch

    tensor = torch.from_numpy(value)
    return (tensor.view(torch.bfloat16) if value.dtype == np.uint16 else tensor).to(device)


def as_numpy(value: Any) -> NDArray[Any]:
    """Any backend's array as NumPy; bfloat16 becomes its 16-bit patterns."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, int):
        return np.asarray(value)
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        import torch

        tensor = tensor.view(torch.uint16)
    return np.asarray(tensor.numpy())


def ulp_distance(left: NDArray[Any], right: NDArray[Any]) -> int:
    """Largest distance in units in the last place; a NaN against a number counts as huge."""
    if left.size == 0:
        return 0
    apart = np.abs(_ordered(left) - _ordered(right))
    left_nan, right_nan = np.isnan(left), np.isnan(right)
    apart = np.where(left_nan & right_nan, 0, apart)
    apart = np.where(left_nan ^ right_nan, np.iinfo(np.int64).max, apart)
    return int(apart.max())


def largest_ulp_distance(left: NDArray[Any], right: NDArray[Any]) -> int:
    """The same in units of the largest entry of `left`: a sum that cancels has small ones."""
    if left.size == 0:
        return 0
    wide, other = widened(left), widened(right)
    largest = np.abs(wide).max()
    if not (np.isfinite(largest) and np.isfinite(other).all()):
        return int(np.iinfo(np.int64).max)
    # Nothing but zeros has no unit: anything else is far away.
    exponent = np.frexp(largest)[1] - 1 if largest > 0 else -1000
    apart = np.abs(wide - other) / 2.0 ** (exponent - _MANTISSAS[left.dtype])
    return int(np.ceil(apart).max())


def _ordered(values: NDArray[Any]) -> NDArray[np.int64]:
    """Floats as integers in the same order; +0 and -0 coincide."""
    integer = _BITS[values.dtype]
    bits: NDArray[np.int64] = values.view(integer).astype(np.int64)
    lowest = int(np.iinfo(integer).min)
    return np.where(bits < 0, lowest - bits, bits)


class TensorKernel:
    """A kernel of an array library other than torch, called with tensors and returning them."""

    def __init__(self, kernel: Kernel, as_tensor: Callable[[NDArray[Any]], Any]) -> None:
        self.card = kernel.card
        self._kernel = kernel
        self._as_tensor = as_tensor

    def __call__(self, /, **inputs: Any) -> Any:
        result = self._kernel(**inputs)
        as_tensor = self._as_tensor
        return result._make(
            [as_tensor(value) if isinstance(value, np.ndarray) else value for value in result]
        )


def speaking_torch(kernels: Kernels) -> Kernels:
    """The same kernels for a caller that holds CPU tensors: no copy in, no copy out."""
    import torch

    def as_tensor(array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        # NumPy has no bfloat16: kernels carry its bit patterns as uint16, and nothing else so.
        return tensor.view(torch.bfloat16) if tensor.dtype is torch.uint16 else tensor

    wrapped: dict[str, Any] = {
        name: TensorKernel(kernel, as_tensor) for name, kernel in kernels.items()
    }
    return Kernels(kernels.backend, kernels.device, kernels.data_errors, wrapped)
