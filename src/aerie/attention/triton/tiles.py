"""The tile geometry of tree attention: a table chosen by a sweep on a device, and its lookup."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aerie.chips import HOST, DeviceRecord
from aerie.errors import UsageError

SHIPPED = Path(__file__).with_name("tiles.json")

# Smallest bucket that holds the value; the last one is open ("and more"). Queries are rows times
# query heads of one KV head, for that product is the height of the work, not the rows alone.
QUERY_BUCKETS = (16, 64, 256, 512, 2048)
COLUMN_BUCKETS = (1024, 8192, 16384, 32768)
BATCH_BUCKETS = (1, 4)
# Shared memory beside operands: what rows and reductions exchange.
SHARED_SLACK = 2048
LEAST_BLOCK = 16  # entries of a side that a matrix unit takes


@dataclass(frozen=True)
class Tile:
    """How one layer's work is cut. Splits of a request follow from `per_processor`.

    A program stacks `block_m` queries (rows times heads), walks columns `block_n` at a time.
    `per_processor` programs are wanted on each multiprocessor at once; 0: never split columns.
    """

    block_m: int
    block_n: int
    n_warps: int
    n_stages: int
    per_processor: int
    masked_cost: int = 2  # blocks without a mask that take as long as one with it
    least_blocks: int = 1  # a split shorter than this is not worth its merge
    is_overlapped: bool = False  # bring up the merge while the splits still run, where it pays
    heads: int = 128  # most query heads of a KV head in one program; more than there are: all


@dataclass(frozen=True)
class TileKey:
    """What a tile is chosen by, each rounded up to its bucket."""

    queries: int  # most rows of a request, times query heads per KV head
    columns: int  # most columns a request's rows look at
    batch: int
    head_dim: int  # padded to a power of two
    element_bytes: int  # bf16 and fp16 move and multiply alike

    def distance(self, other: TileKey) -> tuple[float, float]:
        """How far another key is: first by what changes the memory a tile needs, then by size."""
        shape = _octaves(self.head_dim, other.head_dim) + 10 * _octaves(
            self.element_bytes, other.element_bytes
        )
        size = (
            _octaves(self.queries, other.queries)
            + _octaves(self.columns, other.columns)
            + _octaves(self.batch, other.batch)
        )
        return shape, size


@dataclass(frozen=True)
class TileChoice:
    """A tile, and whether the table has an entry for exactly this key."""

    key: TileKey
    tile: Tile
    is_tuned: bool


@dataclass(frozen=True)
class TileTable:
    """Tiles by key, and for each the device and commit of the sweep that chose it."""

    tiles: Mapping[TileKey, Tile]
    origins: Mapping[TileKey, str]
    is_forced: bool = False  # whether tiles are taken as they are, though a device may refuse them

    def choose(self, key: TileKey, device: DeviceRecord = HOST) -> TileChoice:
        """The entry of this key, else the nearest one, marked as not tuned; cut to the device."""
        known = key
        if key not in self.tiles:
            known = min(self.tiles, key=lambda other: key.distance(other))
        choice = TileChoice(key, self.tiles[known], known == key)
        return choice if self.is_forced else fitted(choice, device)

    def updated(self, newer: TileTable) -> TileTable:
        """This table with the entries of a newer one; the others keep their origin."""
        return TileTable({**self.tiles, **newer.tiles}, {**self.origins, **newer.origins})

    def document(self) -> dict[str, Any]:
        """The table as its file holds it."""
        ordered = sorted(self.tiles, key=lambda key: tuple(asdict(key).values()))
        entries = [
            {"key": asdict(key), "tile": asdict(self.tiles[key]), "origin": self.origins[key]}
            for key in ordered
        ]
        return {"entries": entries}


def tile_key(
    *, queries: int, columns: int, batch: int, head_dim: int, dtype: torch.dtype
) -> TileKey:
    """The bucket of a shape."""
    return TileKey(
        queries=_bucket(queries, QUERY_BUCKETS),
        columns=_bucket(columns, COLUMN_BUCKETS),
        batch=_bucket(batch, BATCH_BUCKETS),
        head_dim=padded(head_dim),
        element_bytes=dtype.itemsize,
    )


def fitted(choice: TileChoice, device: DeviceRecord) -> TileChoice:
    """The choice as a device can run it: fewer queries, stages, then columns. Cut is not tuned."""
    tile, key = choice.tile, choice.key
    if device == HOST:
        return choice
    while _is_crowded(tile, key, device) and tile.block_m > LEAST_BLOCK:
        tile = replace(tile, block_m=tile.block_m // 2)
    while (needed := shared_bytes(tile, key, device)) > device.shared_bytes:
        if tile.n_stages > 2:
            tile = replace(tile, n_stages=tile.n_stages - 1)
        elif tile.block_n > LEAST_BLOCK:
            tile = replace(tile, block_n=tile.block_n // 2)
        elif tile.block_m > LEAST_BLOCK:
            tile = replace(tile, block_m=tile.block_m // 2)
        else:
            raise UsageError(
                f"attention at a head dimension of {key.head_dim} needs {needed} bytes of shared"
                f" memory, this {device.architecture} has {device.shared_bytes}: use attention"
                " pytorch"
            )
    return TileChoice(key, tile, choice.is_tuned and tile == choice.tile)


def shared_bytes(tile: Tile, key: TileKey, device: DeviceRecord) -> int:
    """No less than a program's shared memory, by what the compiler allots for the shipped tiles.

    Queries, weights of the columns, and columns on their way, one block a stage but the last.
    Matrix units that read shared memory want the block they work on, and weights, there once more.
    """
    row = key.head_dim * key.element_bytes
    weights = tile.block_m * tile.block_n * key.element_bytes
    n_blocks, n_weights = tile.n_stages - 1, 1
    if device.multiplies_from_shared:
        n_blocks, n_weights = n_blocks + 1, 2
    operands = (tile.block_m + n_blocks * tile.block_n) * row
    return operands + n_weights * weights + SHARED_SLACK


def _is_crowded(tile: Tile, key: TileKey, device: DeviceRecord) -> bool:
    """Whether sums and scores, and queries where matrix units read them there, fill registers.

    Of those a thread may have, addresses and masks take a quarter.
    """
    held = key.head_dim + tile.block_n
    if not device.multiplies_from_shared:
        held += key.head_dim * key.element_bytes // 4
    n_threads = 32 * tile.n_warps
    return 4 * tile.block_m * held > 3 * n_threads * min(256, device.registers // n_threads)


def load_tiles(path: Path = SHIPPED) -> TileTable:
    """Read a table; the shipped one unless another sweep's is named."""
    document = json.loads(path.read_text(encoding="utf-8"))
    keyed = {TileKey(**entry["key"]): entry for entry in document["entries"]}
    tiles = {key: Tile(**entry["tile"]) for key, entry in keyed.items()}
    if not tiles:
        raise UsageError(f"{path.name} holds no tiles; write it with scripts/gpu_attention.sh")
    return TileTable(tiles, {key: entry["origin"] for key, entry in keyed.items()})


def one_tile(tile: Tile) -> TileTable:
    """A table that answers every key with one tile: for sweeps and tests, never tuned."""
    anywhere = TileKey(1, 1, 1, 1, 1)
    return TileTable({anywhere: tile}, {anywhere: "given by the caller"}, is_forced=True)


def padded(n: int) -> int:
    """The power of two a head dimension is computed at; 16 is the least a matrix unit takes."""
    return max(16, 1 << (n - 1).bit_length())


def _bucket(value: int, buckets: tuple[int, ...]) -> int:
    return next((bucket for bucket in buckets if value <= bucket), buckets[-1])


def _octaves(a: int, b: int) -> float:
    return abs(math.log2(a / b))
