"""Tree attention in Triton: split columns without a mask, trees from packed bits."""

from aerie.attention.triton.backend import PreparedAttention, TritonAttention, TritonOptions
from aerie.attention.triton.plan import PlanStatistics
from aerie.attention.triton.tiles import Tile, TileKey, TileTable, load_tiles, one_tile, tile_key

__all__ = [
    "PlanStatistics",
    "PreparedAttention",
    "Tile",
    "TileKey",
    "TileTable",
    "TritonAttention",
    "TritonOptions",
    "load_tiles",
    "one_tile",
    "tile_key",
]
