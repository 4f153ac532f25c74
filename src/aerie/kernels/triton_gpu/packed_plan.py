"""Tiles of products with packed weights: a tuned table's, or by a rule where it has none.

How the inner axis is walked follows from the weight alone (`packed_walk.py`), so that a tile is
only how many rows and outputs a program has: results have the same bits whichever it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from torch import Tensor

from aerie.chips import CHIPS, DeviceRecord, record_of
from aerie.errors import UsageError

VERSION = 1
FEW = 16  # rows of the smallest matrix instruction, and outputs
WIDTHS = (128, 64, 32, FEW)
PARTS = 8  # of the inner axis; where rows are few, warps walk them side by side
MOST_STAGES = 4
# Numbers of rows that a tuned tile is for: up to so many, and the last one beyond.
ROW_BUCKETS = (1, 8, 16, 32, 64, 2048)


def parts_of(n_steps: int) -> int:
    """Parts of an inner axis: by the weight alone, for every order of sums has bits of its own."""
    return PARTS if n_steps >= PARTS else 1


@dataclass(frozen=True)
class Product:
    """A card's product with a weight, by what a tile depends on."""

    name: str
    n_out: int
    n_in: int
    step: int  # codes that are multiplied at a time

    @property
    def has_parts(self) -> bool:
        """Whether its inner axis is long enough to be cut."""
        return parts_of(-(-self.n_in // self.step)) == PARTS

    @property
    def code_bytes(self) -> float:
        """Of one code."""
        return 0.5 if self.name == "multiply_int4" else 1.0


@dataclass(frozen=True)
class Tile:
    """Rows and outputs of a program, and how it is compiled."""

    rows: int
    outputs: int
    warps: int
    stages: int
    is_spread: bool = True  # parts of the inner axis side by side; else one after the other

    def shared_bytes(self, product: Product, element_bytes: int) -> int:
        """Shared memory at most: rows and codes of a step on their way, and the parts' sums."""
        codes = int(self.outputs * product.step * product.code_bytes)
        parts = PARTS if self.is_spread else 1
        step = parts * (self.rows * product.step * element_bytes + codes)
        unpacked = parts * (self.rows + self.outputs) * product.step * element_bytes
        # Operands in 16 bits go from there into registers, but for four-bit codes of few outputs,
        # which the compiler puts there once more, as it does with float32.
        is_twice = element_bytes == 4 or (product.code_bytes < 1 and self.outputs == FEW)
        sums = PARTS * self.rows * self.outputs * 4
        return max(self.stages * step + unpacked * is_twice, sums)

    def is_one_order(self) -> bool:
        """Whether it leaves the bits of all others.

        Four warps with 64 outputs take Hopper's own matrix instruction, which adds other inputs
        together first; spread parts never do.
        """
        if self.is_spread:
            return PARTS % self.warps == 0
        return self.warps < 4 or self.outputs < 64


# By rows: few rows read the weight at the memory's speed, many are bound by the matrix units.
TILES = (
    (8, Tile(8, 32, 8, MOST_STAGES)),
    (16, Tile(16, 32, 8, MOST_STAGES)),
    (64, Tile(32, 32, 8, 3)),
    (1 << 30, Tile(128, 32, 4, 3, is_spread=False)),
)


@dataclass(frozen=True)
class Key:
    """What a tuned tile is for; `rows` is one of the buckets."""

    name: str
    n_out: int
    n_in: int
    rows: int


Table = Mapping[Key, Tile]


def tile_for(product: Product, x: Tensor) -> Tile:
    """A tile for a product on the device of its rows, in their dtype."""
    device, n_rows = record_of(x.device), x.shape[0]
    if x.element_size() == 2:  # no other dtype was tuned
        key = Key(product.name, product.n_out, product.n_in, bucket_of(n_rows))
        if key in tuned(device):
            return tuned(device)[key]
    tile = next(tile for most, tile in TILES if n_rows <= most)
    tile = _spread_out(tile, n_rows, product.n_out, device)
    if not product.has_parts and tile.is_spread:
        tile = replace(tile, warps=1, is_spread=False)
    return _fitted(tile, product, x.element_size(), device)


def bucket_of(n_rows: int) -> int:
    """The bucket of so many rows."""
    return next((bucket for bucket in ROW_BUCKETS if n_rows <= bucket), ROW_BUCKETS[-1])


@cache
def tuned(device: DeviceRecord) -> Table:
    """The tiles that come with aerie for a device, by its record; none where none were tuned."""
    folder = resources.files("aerie.kernels.triton_gpu")
    for name, chip in CHIPS.items():
        file = folder.joinpath(f"packed_{name}.json")
        if chip == device and file.is_file():
            return parse_table(json.loads(file.read_text(encoding="utf-8")), file.name)
    return {}


def parse_table(record: Mapping[str, Any], source: str) -> Table:
    """A table from its parsed JSON."""
    if record.get("version") != VERSION:
        raise UsageError(
            f"{source}: version {record.get('version')!r} of a table of packed products, this"
            f" aerie reads {VERSION}; measure it again"
        )
    tiles = {}
    for entry in record["entries"]:
        key = Key(entry["name"], entry["n_out"], entry["n_in"], entry["rows"])
        tile = Tile(**entry["tile"])
        if key.rows not in ROW_BUCKETS or not tile.is_one_order():
            raise UsageError(f"{source}: {key} has a tile that no product takes: {tile}")
        tiles[key] = tile
    return tiles


def table_record(
    tiles: Iterable[tuple[Key, Tile, Mapping[str, float]]], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON of a table: one entry per shape, with the figures that chose its tile."""
    entries = [{**asdict(key), "tile": asdict(tile), **figures} for key, tile, figures in tiles]
    return {"version": VERSION, "provenance": dict(provenance), "entries": entries}


def _spread_out(tile: Tile, n_rows: int, n_out: int, device: DeviceRecord) -> Tile:
    """Fewer outputs for each program where there would be fewer than two for each processor."""
    n_row_tiles = -(-n_rows // tile.rows)
    fits = [width for width in WIDTHS if width <= tile.outputs]
    wanted = 2 * device.processors
    full = [width for width in fits if n_row_tiles * -(-n_out // width) >= wanted]
    width = max(full, default=FEW)
    return replace(tile, outputs=width, warps=tile.warps if width == tile.outputs else 4)


def _fitted(tile: Tile, product: Product, element_bytes: int, device: DeviceRecord) -> Tile:
    """With as few stages less, then as few rows and outputs, as the device's memory asks for.

    Where that is not enough, parts stand one after the other, each in the memory of one.
    """
    while tile.shared_bytes(product, element_bytes) > device.shared_bytes:
        if tile.stages > 2:
            tile = replace(tile, stages=tile.stages - 1)
        elif tile.rows > FEW:
            tile = replace(tile, rows=tile.rows // 2)
        elif tile.outputs > FEW:
            tile = replace(tile, outputs=tile.outputs // 2)
        else:
            assert tile.is_spread, f"no tile of {product} fits into {device.shared_bytes} bytes"
            tile = replace(tile, warps=1, is_spread=False)
    return tile
