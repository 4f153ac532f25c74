"""The chip: 64 KB of memory of its own and two programs. A driver library would look like this."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MEMORY_BYTES = 1 << 16


class Chip:
    """A program reads what was uploaded and writes what is then downloaded."""

    def __init__(self) -> None:
        self.n_uploaded = self.n_downloaded = 0  # bytes, for reports
        self._memory = np.zeros(MEMORY_BYTES, np.uint8)
        self._used = 0

    def reset(self) -> None:
        """Forget what was uploaded."""
        self._used = 0

    def upload(self, array: NDArray[Any]) -> int:
        """Copy an array into the chip; returns its address."""
        self.n_uploaded += array.nbytes
        address = self.reserve(array.nbytes)
        packed = np.ascontiguousarray(array)  # arrays may come strided, and walked backwards
        self._memory[address : address + array.nbytes] = packed.reshape(-1).view(np.uint8)
        return address

    def reserve(self, n_bytes: int) -> int:
        """An address with room for so many bytes."""
        address = self._used
        self._used += -(-n_bytes // 8) * 8
        assert self._used <= MEMORY_BYTES, "the limits of the backend keep calls below this"
        return address

    def download(self, address: int, n_items: int, dtype: DTypeLike) -> NDArray[Any]:
        """Copy an array out of the chip."""
        n_bytes = n_items * np.dtype(dtype).itemsize
        self.n_downloaded += n_bytes
        return self._memory[address : address + n_bytes].copy().view(dtype)

    def run_gains(
        self, scores: int, gains: int, shape: tuple[int, int], sizes: tuple[int, int]
    ) -> None:
        """Program 1: gains of the new scores of every row, summed up; see `kernels.py`."""
        (batch, total), (n_new, n_kept) = shape, sizes
        rows = self._memory[scores : scores + 4 * batch * total].view(np.float32)
        sums = self._memory[gains : gains + 8 * (n_new + 1)].view(np.float64)
        sums[:] = 0.0
        n_old = total - n_new
        for row in range(batch):
            first, mass = row * total, 0.0
            for index in range(n_new):
                score, met = float(rows[first + n_old + index]), n_kept - 1 - index
                displaced = float(rows[first + met]) if 0 <= met < n_old else 0.0
                if met >= 0 and score > displaced:
                    mass += score - displaced
                sums[index + 1] += mass

    def run_active(self, flags: int, lengths: int, out: int, n_slots: int) -> None:
        """Program 2: active slots, their inverse and their number, one after another."""
        dead = self._memory[flags : flags + 2 * n_slots].view(np.bool_)
        size = self._memory[lengths : lengths + 16 * n_slots].view(np.int64)
        words = self._memory[out : out + 8 * n_slots + 4].view(np.int32)
        words[:] = -1
        count = 0
        for slot in range(n_slots):
            if dead[slot] or dead[n_slots + slot] or size[slot] >= size[n_slots + slot]:
                continue
            words[count] = slot
            words[n_slots + slot] = count
            count += 1
        words[2 * n_slots] = count
