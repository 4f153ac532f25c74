"""Tiles of products with packed weights, by a rule: none was tuned on a GPU yet.

The inner axis is walked in steps that follow from the weight, so that a tile is only how many rows
and outputs a program has; results have the same bits whichever it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from aerie.chips import DeviceRecord, record_of

FEW = 16  # rows of the smallest matrix instruction, and outputs
WIDTHS = (128, 64, 32, FEW)
MOST_STAGES = 4


@dataclass(frozen=True)
class Tile:
    """Rows and outputs of a program, and how it is compiled."""

    rows: int
    outputs: int
    warps: int
    stages: int

    def shared_bytes(self, step: int, element_bytes: int) -> int:
        """Shared memory at most: rows and unpacked weights of a step, and codes on their way."""
        both = (self.rows + self.outputs) * step * element_bytes
        return self.stages * (self.rows * step * element_bytes + self.outputs * step) + both


# By rows: few rows read the weight at the memory's speed, many are bound by the matrix units.
TILES = (
    (16, Tile(16, 64, 4, MOST_STAGES)),
    (32, Tile(32, 64, 4, MOST_STAGES)),
    (64, Tile(64, 64, 4, MOST_STAGES)),
    (1 << 30, Tile(128, 128, 8, 3)),
)


def tile_for(n_rows: int, n_out: int, step: int, x: Tensor) -> Tile:
    """A tile for a product on the device of its rows, in their dtype."""
    device = record_of(x.device)
    tile = next(tile for most, tile in TILES if n_rows <= most)
    return _fitted(_spread(tile, n_rows, n_out, device), step, x.element_size(), device)


def _spread(tile: Tile, n_rows: int, n_out: int, device: DeviceRecord) -> Tile:
    """Fewer outputs for each program where there would be fewer programs than processors."""
    n_row_tiles = -(-n_rows // tile.rows)
    fits = [width for width in WIDTHS if width <= tile.outputs]
    full = [width for width in fits if n_row_tiles * -(-n_out // width) >= device.processors]
    width = max(full, default=FEW)
    return replace(tile, outputs=width, warps=tile.warps if width > FEW else 2)


def _fitted(tile: Tile, step: int, element_bytes: int, device: DeviceRecord) -> Tile:
    """With as few stages less, then as few rows, as the device's memory asks for."""
    while tile.shared_bytes(step, element_bytes) > device.shared_bytes:
        if tile.stages > 2:
            tile = replace(tile, stages=tile.stages - 1)
        elif tile.rows > FEW:
            tile = replace(tile, rows=tile.rows // 2)
        else:
            tile = replace(tile, outputs=tile.outputs // 2)
    return tile
