"""Tiles of a mixture's products, by a rule: none was tuned on a GPU yet.

How many rows an expert has is known to the device alone, so that a tile follows from the mean. A
tile of more rows than an expert has is padded, one of fewer reads and widens its weight again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.chips import DeviceRecord, record_of

FEWEST_OUTPUTS = 16


@dataclass(frozen=True)
class ExpertTile:
    """Rows and outputs of a program, inputs of a step, and how it is compiled."""

    rows: int
    outputs: int
    inner: int
    warps: int
    stages: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory at most: of every stage rows in bfloat16, codes and scales."""
        codes = self.outputs * (self.inner // 2 + self.inner // 32)
        return self.stages * (2 * self.rows * self.inner + codes) + 2 * self.rows * self.outputs


# By the mean rows of an expert. Warps by the pair multiply by the instruction whose operands pass
# through registers, where codes are widened anyway; of many rows four take the larger one.
TILES = (
    (2, ExpertTile(8, 64, 128, 2, 4)),
    (8, ExpertTile(16, 64, 128, 2, 4)),
    (24, ExpertTile(32, 64, 128, 2, 3)),
    (1 << 30, ExpertTile(64, 128, 128, 4, 3)),
)
# Other dtypes go block by block, by instructions of their own.
PLAIN_TILES = (
    (16, ExpertTile(16, 32, 32, 4, 2)),
    (1 << 30, ExpertTile(128, 32, 32, 4, 2)),
)
# Programs for each processor that few rows should have, so that all of them read memory.
LEAST_EACH = 8
# Codes for each thread that make its part of their scales a copy of four bytes: shorter ones are
# not under way while others are multiplied.
CODES_EACH = 4 * 32


def tile_for(n_pairs: int, n_experts: int, n_out: int, x: Tensor) -> ExpertTile:
    """A tile for so many pairs on the device of their rows, in their dtype."""
    device = record_of(x.device)
    tiles = TILES if x.dtype == torch.bfloat16 else PLAIN_TILES
    tile = next(tile for most, tile in tiles if n_pairs <= most * n_experts)
    if tiles is PLAIN_TILES:
        return tile
    return _fitted(_spread(tile, min(n_pairs, n_experts), n_out, device), device)


def _spread(tile: ExpertTile, n_tiles: int, n_out: int, device: DeviceRecord) -> ExpertTile:
    """Fewer outputs for each program where few rows would leave processors idle."""
    least = LEAST_EACH * device.processors
    while tile.outputs > FEWEST_OUTPUTS and n_tiles * -(-n_out // tile.outputs) < least:
        outputs, warps = tile.outputs // 2, max(1, tile.warps // 2)
        inner = max(tile.inner, CODES_EACH * 32 * warps // outputs)
        tile = replace(tile, outputs=outputs, inner=inner, warps=warps)
    return tile


def _fitted(tile: ExpertTile, device: DeviceRecord) -> ExpertTile:
    """With as few stages less as the device's memory asks for."""
    while tile.shared_bytes > device.shared_bytes and tile.stages > 1:
        tile = replace(tile, stages=tile.stages - 1)
    return tile
