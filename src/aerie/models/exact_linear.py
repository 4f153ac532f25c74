"""Linear layers in tiles of fixed height, so that a row's bits do not depend on its neighbours.

A library's product chooses its kernel by the number of rows, and a row's last bits change with it
(7e-7 in float32 on the CPUs that were tried). Tiles of one height always take the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Sixteen rows were bitwise equal for 1 to 64 rows on the CPUs that were tried (2026-10).
TILE = 16


@dataclass(frozen=True, eq=False)
class TiledLinear:
    """A dense layer computed sixteen rows at a time, the last tile padded with zeros."""

    weight: Tensor  # [n_out, n_in]
    bias: Tensor | None  # [n_out]

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, n_in] to [rows, n_out]."""
        n_rows = x.shape[0]
        n_tiles = -(-n_rows // TILE)
        padded = x.new_zeros((n_tiles * TILE, x.shape[1]))
        padded[:n_rows] = x
        tiles = [functional.linear(tile, self.weight, self.bias) for tile in padded.split(TILE)]
        made = torch.cat(tiles) if tiles else x.new_zeros((0, self.weight.shape[0]))
        return made[:n_rows]
