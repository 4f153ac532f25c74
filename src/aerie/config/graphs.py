"""The sizes that captured rounds are cut to."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.config.values import choice, read_fields, require


@dataclass(frozen=True)
class GraphConfig:
    """Sizes that captured rounds are cut to; a batch runs in the smallest that holds it."""

    slots: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)  # requests
    # Verified, in all. Products of 24 and 48 rows take as long as those of 32 and 64 (H200).
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
    # Prompt tokens, all requests together: what pads them is computed in vain.
    chunks: tuple[int, ...] = (
        *(64, 128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536),
        *(1792, 2048, 2304, 2560, 3072, 3584, 4096),
    )
    tiles: tuple[int, ...] = (4, 16, 64)  # rows of one request that attention's tiles are made for
    # Positions of a request; the most it may have comes on top. The device reads true lengths: a
    # bucket sizes buffers and chooses attention's tiles, so a few are enough.
    columns: tuple[int, ...] = (1024, 8192)
    # full: loading records all that the limits can ask for; quick: idle moments do, after it; off:
    # rounds do, as they need them.
    warm: str = "full"
    record_every: int = 16  # rounds between two recordings, where another graph does; 0: at once

    def __post_init__(self) -> None:
        read_fields(self)
        choice("graphs.warm", self.warm, ("full", "quick", "off"))
        for name in ("slots", "rows", "chunks", "tiles", "columns"):
            sizes = getattr(self, name)
            rises = list(sizes) == sorted(set(sizes))
            require(bool(sizes) and sizes[0] > 0 and rises, f"graphs.{name} must rise from 1 on")
