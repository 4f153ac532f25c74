"""What every wrapper needs before a launch: block sizes, status words, contiguous rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from aerie.errors import UsageError
from aerie.kernels import tensors
from aerie.kernels.cards.axes import MAX_VERIFY


def refuse_device(kind: str) -> str | None:
    """Why the kernels cannot run on a kind of device, or None where they can."""
    if kind == "cuda":
        return None if torch.cuda.is_available() else "torch finds no CUDA device"
    if triton.knobs.runtime.interpret:
        return None
    return "Triton runs on a CPU in its interpreter only: set TRITON_INTERPRET=1 before starting"


def adopt(array: Any, device: str, is_written: bool) -> Tensor:
    """As every backend on tensors does it; in the interpreter, what is only read is copied.

    The interpreter knows memory by the address where it begins, so that no two arguments may
    begin at the same one.
    """
    tensor = tensors.adopt(array, device, is_written)
    is_kept = device != "cpu" or (is_written and tensor.numel() > 0)
    return tensor if is_kept else tensor.clone()


def block(size: int, least: int = 1) -> int:
    """The power of two that holds `size`: the sizes Triton's vectors have."""
    return max(least, triton.next_power_of_2(max(size, 1)))


def tree_block(n_rows: int) -> int:
    """A vector for the rows of one request out of `n_rows` in all: their number is squared."""
    return next((size for size in (16, 32, 64) if n_rows <= size), MAX_VERIFY)


def words(batch: int, device: torch.device) -> dict[str, Tensor]:
    """Room for `status[B]` and `detail[B]`; the kernel writes every entry."""
    return {
        "status": torch.empty(batch, dtype=torch.int32, device=device),
        "detail": torch.empty(batch, dtype=torch.int64, device=device),
    }


def row_stride(array: Tensor) -> int:
    """Distance of two rows of an array that is written in place; its entries must be adjacent."""
    if array.shape[1] > 1 and array.stride(1) != 1:
        raise UsageError(
            f"an array written in place has stride {array.stride(1)} along a row;"
            " Triton kernels take adjacent entries: pass a contiguous tensor"
        )
    return array.stride(0)


def packed(array: Tensor) -> Tensor:
    """An array to be written in place, or a packed copy of it where its entries lie apart."""
    return array if array.dim() < 2 or array.stride(-1) == 1 else array.contiguous()


def contiguous(*arrays: Tensor) -> list[Tensor]:
    """Arrays that are only read, or packed copies of those whose entries lie apart."""
    return [array.contiguous() for array in arrays]


def write_back(copies: Sequence[Tensor], arrays_out: Sequence[Tensor | None]) -> None:
    """Copies that stood for arrays written in place go back to where those lie."""
    for copy, array in zip(copies, arrays_out, strict=True):
        if array is not None and copy is not array:
            array.copy_(copy)


def launch(kernel: Any, grid: tuple[int, ...], named: Mapping[str, Any], **options: Any) -> None:
    """Launch a kernel whose parameters are all in `named`; those it writes have the ending _out."""
    kernel[grid](**{name: named[name.removesuffix("_out")] for name in kernel.arg_names}, **options)


def entry_stride(array: Tensor) -> int:
    """Distance of two entries of an array of one axis: a column of a table is written in place."""
    return array.stride(0) if array.shape[0] > 1 else 1


def as_bytes(flags: Tensor) -> Tensor:
    """Booleans as the bytes they are stored as."""
    return flags.contiguous().view(torch.uint8)
