"""The sizes a workload is made for, and what the kernels of one of its rounds share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.kernels.cases.trees import Layout, Store

Inputs = dict[str, Any]

TOP_K = 8
WIDTH = 8
LEVELS = 5
DEPTH = 12


@dataclass(frozen=True)
class Shape:
    """The sizes a workload is made for."""

    batch: int
    verify: int
    context: int
    vocabulary: int
    hidden: int


@dataclass(frozen=True)
class Round:
    """What the kernels of one round share."""

    shape: Shape
    rng: np.random.Generator
    store: Store
    layout: Layout

    @property
    def rows(self) -> int:
        """Rows of all trees."""
        return int(self.layout.indptr[-1])

    @property
    def seq_len(self) -> Any:
        """Tokens of each request. [B]"""
        return np.full(self.shape.batch, self.shape.context, np.int64)

    @property
    def table(self) -> Any:
        """Request-to-slot table. [B, positions]"""
        width = self.shape.context + 128
        slots = 1 + np.arange(self.shape.batch * width, dtype=np.int32)
        return slots.reshape(self.shape.batch, width)

    @property
    def pool(self) -> Any:
        """Table row of each request. [B]"""
        return np.arange(self.shape.batch)

    @property
    def hidden(self) -> Any:
        """Hidden rows of a frontier. [B * width, hidden]"""
        rows = self.shape.batch * WIDTH
        return self.rng.standard_normal((rows, self.shape.hidden)).astype(np.float16)
