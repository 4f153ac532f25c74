"""The sizes a workload is made for, and what the kernels of one of its rounds share."""

from __future__ import annotations

from collections.abc import Callable
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
    def batch(self) -> int:
        """Requests."""
        return self.shape.batch

    @property
    def rows(self) -> int:
        """Rows of all trees."""
        return int(self.layout.indptr[-1])

    @property
    def seq_len(self) -> Any:
        """Tokens of each request. [B]"""
        return np.full(self.batch, self.shape.context, np.int64)

    @property
    def table(self) -> Any:
        """Request-to-slot table. [B, positions]"""
        width = self.shape.context + 128
        return 1 + np.arange(self.batch * width, dtype=np.int32).reshape(self.batch, width)

    @property
    def pool(self) -> Any:
        """Table row of each request. [B]"""
        return np.arange(self.batch)

    @property
    def texts(self) -> Inputs:
        """Where the tokens of every request are."""
        return {
            "req_to_token": self.table,
            "req_pool_indices": self.pool,
            "seq_len": self.seq_len,
        }

    @property
    def hidden(self) -> Any:
        """Hidden rows of a frontier. [B * width, hidden]"""
        rows = self.batch * WIDTH
        return self.rng.standard_normal((rows, self.shape.hidden)).astype(np.float16)

    def logits(self, rows: int) -> Any:
        """Of so many rows. [rows, vocabulary]"""
        return self.rng.standard_normal((rows, self.shape.vocabulary), np.float32) * 4

    def tokens(self, *size: int) -> Any:
        """Zeros that stand for ids."""
        return np.zeros(size, np.int64)

    def flags(self, *size: int) -> Any:
        """All false."""
        return np.zeros(size, np.bool_)

    def words(self, *size: int) -> Any:
        """Zeros of 32 bits."""
        return np.zeros(size, np.int32)

    def bounds(self, count: int) -> Any:
        """Where each request's part of a list begins, all parts as long. [B + 1]"""
        return (count * np.arange(self.batch + 1)).astype(np.int32)


Builder = Callable[[Round], Inputs]
