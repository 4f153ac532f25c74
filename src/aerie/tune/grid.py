"""Where costs are measured: batches, contexts, rows and how long it may take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

# Told what is under way, and how much of all of it is done.
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Progress that is not shown."""


@dataclass(frozen=True)
class Grid:
    """Where rounds are measured."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (512, 8192, 32768)
    most_rows: int = 256  # of all requests together, beyond two a request
    repeats: int = 5
    most_tokens: int = 524_288  # KV of a measured point; more is stretched from one request
    margin: int = 1536  # positions beyond a context: what its rounds emit, and a tree
    most_seconds: float = math.inf  # nothing is begun later but the first point's first plans

    def points(self) -> list[tuple[int, int]]:
        """Batch and context of all points that fit, a surface's corners first: time may run out."""
        found = []
        for batch in self.batches:
            contexts = sorted(self.contexts)
            fitting = [c for c in contexts[1:] if batch == 1 or batch * c <= self.most_tokens]
            turns = [contexts[0], *reversed(fitting)]
            found += [(turn, batch, context) for turn, context in enumerate(turns)]
        return [(batch, context) for _, batch, context in sorted(found)]


# Without a table, 30 s at most: on a GPU some ten and what is compiled, on a CPU about three.
QUICK = {
    "graphs": Grid((1, 4, 16), (512, 8192), 128, 3, 65_536, most_seconds=25.0),
    "direct": Grid((1, 4, 16), (256, 4096), 128, 3, 0, 512, 15.0),
}
FULL = {
    "graphs": Grid((1, 2, 4, 8, 16, 32, 64), most_rows=512, most_seconds=140.0),
    "direct": Grid(contexts=(256, 2048, 8192), most_tokens=131_072, margin=512),
}
