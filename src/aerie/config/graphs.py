"""The sizes that captured rounds are cut to."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.config.values import read_fields, require


@dataclass(frozen=True)
class GraphConfig:
    """Sizes that captured rounds are cut to; a batch runs in the smallest that holds it."""

    slots: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)  # requests
    # Verified, in all. Products of 24 and 48 rows take as long as those of 32 and 64 (H200).
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
    chunks: tuple[int, ...] = (64, 256, 512, 1024, 2048)  # prompt tokens, all requests together
    tiles: tuple[int, ...] = (4, 16, 64)  # rows of one request that attention's tiles are made for
    columns: tuple[int, ...] = tuple(512 << power for power in range(9))  # positions of a request
    record_every: int = 16  # rounds between two recordings, where another graph does; 0: at once

    def __post_init__(self) -> None:
        read_fields(self)
        for name in ("slots", "rows", "chunks", "tiles", "columns"):
            sizes = getattr(self, name)
            rises = list(sizes) == sorted(set(sizes))
            require(bool(sizes) and sizes[0] > 0 and rises, f"graphs.{name} must rise from 1 on")
