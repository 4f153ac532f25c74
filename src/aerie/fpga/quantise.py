"""4-bit weights in groups with a 16-bit scale, two numbers a byte: how the draft head is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ZERO = 8  # numbers are stored less this
# Shares of a group's largest weight that its outermost number may stand for; the best is kept.
CLIPS = np.linspace(0.6, 1.0, 17)


@dataclass(frozen=True, eq=False)
class Quantised:
    """One weight [n_out, n_in]: bytes [n_out, n_in / 2] and scales [n_out, n_in / group]."""

    nibbles: Array
    scales: Array
    group: int

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return int(self.nibbles.nbytes + self.scales.nbytes)

    def values(self) -> Array:
        """The weight as it is multiplied, float32."""
        numbers = unpack(self.nibbles).astype(np.float32)
        scales = np.repeat(self.scales.astype(np.float32), self.group, axis=1)
        return numbers * scales


def quantise(weight: Array, group: int) -> Quantised:
    """Round to (number - 8) * scale, each group's scale chosen by least squared error."""
    n_out, n_in = weight.shape
    parts = weight.astype(np.float32).reshape(n_out, n_in // group, group)
    largest = np.maximum(np.abs(parts).max(-1, keepdims=True), 1e-6)
    best = np.full(largest.shape, np.inf, np.float32)
    numbers = np.zeros(parts.shape, np.int8)
    scales = np.zeros(largest.shape, np.float16)
    for clip in CLIPS:
        scale = (largest * clip / (ZERO - 1)).astype(np.float16)
        wide = np.maximum(scale.astype(np.float32), 1e-7)
        rounded = np.clip(np.rint(parts / wide), -ZERO, ZERO - 1)
        error = ((rounded * wide - parts) ** 2).sum(-1, keepdims=True)
        is_better = error < best
        best = np.where(is_better, error, best)
        numbers = np.where(is_better, rounded, numbers).astype(np.int8)
        scales = np.where(is_better, scale, scales)
    return Quantised(pack(numbers.reshape(n_out, n_in)), scales[:, :, 0], group)


def pack(numbers: Array) -> Array:
    """Numbers in [-8, 8) as bytes, the lower of each pair first."""
    stored = (numbers.astype(np.int16) + ZERO).astype(np.uint8)
    return np.ascontiguousarray(stored[:, 0::2] | (stored[:, 1::2] << 4))


def unpack(nibbles: Array) -> Array:
    """The numbers again."""
    numbers = np.empty((nibbles.shape[0], 2 * nibbles.shape[1]), np.int8)
    numbers[:, 0::2] = (nibbles & 15).astype(np.int8) - ZERO
    numbers[:, 1::2] = (nibbles >> 4).astype(np.int8) - ZERO
    return numbers


def tiled(weight: Quantised) -> Quantised:
    """Columns in tiles of one group: tile after tile, in each every output row.

    The order in which a fused feed-forward meets them (`fused_draft.hpp`).
    """
    n_out = weight.nibbles.shape[0]
    n_tiles = weight.scales.shape[1]
    nibbles = weight.nibbles.reshape(n_out, n_tiles, weight.group // 2).swapaxes(0, 1)
    scales = weight.scales.swapaxes(0, 1)
    return Quantised(np.ascontiguousarray(nibbles), np.ascontiguousarray(scales), weight.group)
