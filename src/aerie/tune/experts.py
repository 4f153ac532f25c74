"""Experts counted while costs are measured: routers that say how many a layer has touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from aerie.models.decoder import Decoder, DecoderLayer
from aerie.models.feed_forward import Experts
from aerie.models.linear import Linear


@dataclass(eq=False)
class Count:
    """Distinct experts of every layer that was computed while it was on."""

    is_on: bool = False
    seen: list[int] = field(default_factory=list)

    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        """What is computed meanwhile; a graph that is replayed calls no router and counts none."""
        self.seen, self.is_on = [], True
        try:
            yield self.seen
        finally:
            self.is_on = False


@dataclass(frozen=True, eq=False)
class CountedRouter:
    """A router as it was; what it adds to a timed round is one question."""

    router: Linear
    n_active: int
    count: Count

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, hidden] to [rows, experts]."""
        logits = self.router(x)
        if self.count.is_on:
            chosen = torch.topk(logits, self.n_active, dim=-1).indices
            self.count.seen.append(int(torch.unique(chosen).numel()))
        return logits


def counted(target: Decoder) -> Decoder:
    """The same target, its experts counted on demand; a dense one is itself."""
    if target.geometry.experts is None:
        return target
    count = Count()
    return replace(target, layers=tuple(_counted(layer, count) for layer in target.layers))


def count_of(target: Decoder) -> Count | None:
    """Where a counted target counts; None: it has no experts."""
    for layer in target.layers:
        own = layer.feed_forward
        if isinstance(own, Experts) and isinstance(own.router, CountedRouter):
            return own.router.count
    return None


def _counted(layer: DecoderLayer, count: Count) -> DecoderLayer:
    own = layer.feed_forward
    if not isinstance(own, Experts):
        return layer
    router = CountedRouter(own.router, own.n_active, count)
    return replace(layer, feed_forward=replace(own, router=router))
