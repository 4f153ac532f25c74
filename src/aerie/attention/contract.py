"""What an attention implementation is: how far layers reach, and the two calls of a backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from aerie.attention.rows import Rows


@dataclass(frozen=True)
class Reach:
    """How far back a layer looks, by position; it narrows what `Rows` already lets through.

    A row at position p reaches a key at position k when `k > p - window`, or when
    `k < n_sink_tokens` (the first tokens of the text, kept by streaming drafts).
    """

    window: int | None = None
    n_sink_tokens: int = 0


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """What one layer brings to attention beside its queries."""

    scale: float
    reach: Reach
    sink_logits: Tensor | None = None  # [heads] f32, a learned logit with no value behind it


class Attend(Protocol):
    """Attention over one prepared batch of rows; called once a layer."""

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention
    ) -> Tensor:
        """Queries [rows, heads, dim], one layer of the pool [slots, kv_heads, dim] twice.

        Returns [rows, heads, dim] in the dtype of the queries. Scores and softmax are float32.
        Query head h reads KV head h * kv_heads // heads. The rows' own keys and values are
        already in the pool.
        """
        ...


class PrepareAttention(Protocol):
    """A backend: does the work that all layers of one forward share."""

    def __call__(self, rows: Rows, reaches: Iterable[Reach]) -> Attend:
        """Prepare for layers whose reach is one of `reaches`."""
        ...
