"""The decoder: one forward pass over ragged rows, for every architecture of the table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from aerie.attention.contract import Attend, LayerAttention, PrepareAttention
from aerie.attention.pool import KVPool, allocate_pool
from aerie.attention.rows import Rows
from aerie.errors import AerieError, UsageError
from aerie.models.feed_forward import FeedForward
from aerie.models.geometry import Geometry
from aerie.models.layer_ops import TORCH_OPS, LayerOps
from aerie.models.linear import Linear, Projections
from aerie.models.norm import RMSNorm
from aerie.models.rope import Rotary, Rotation


@dataclass(frozen=True, eq=False)
class Watched:
    """Queries that a forward leaves behind, rotated: of all rows, or of some."""

    queries: Tensor  # [layers, rows watched, heads, dim]
    rows: Tensor | None = None  # [rows watched] i64; None: all

    def take(self, layer_idx: int, queries: Tensor) -> None:
        """Copy those of one layer."""
        self.queries[layer_idx] = queries if self.rows is None else queries[self.rows]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """What all layers of one forward share."""

    rows: Rows
    pool: KVPool
    rotation: Rotation
    attend: Attend
    watched: Watched | None = None


@dataclass(frozen=True, eq=False)
class AttentionBlock:
    """Project, normalise heads if the model does, rotate, store, attend, project back.

    The input may be wider than the output: a draft head reads an embedding beside a feature.
    """

    qkv: Projections
    output: Linear
    head_dim: int
    query_norm: RMSNorm | None
    key_norm: RMSNorm | None
    rule: LayerAttention
    ops: LayerOps = TORCH_OPS

    def __call__(self, x: Tensor, step: ForwardPass, layer_idx: int) -> Tensor:
        """[rows, width] to [rows, hidden]; writes the rows' keys and values into the pool."""
        queries, stored = self.store(x, step, layer_idx), step.pool.layers[layer_idx]
        return self.output(step.attend(queries, *stored, self.rule).flatten(1))

    def store(self, x: Tensor, step: ForwardPass, layer_idx: int) -> Tensor:
        """Write the rows' keys and values into the pool; their queries [rows, heads, dim]."""
        queries, keys, values = (part.unflatten(-1, (-1, self.head_dim)) for part in self.qkv(x))
        if self.query_norm is not None:
            queries = self.query_norm(queries)
        if self.key_norm is not None:
            keys = self.key_norm(keys)
        rotation = step.rotation.cos, step.rotation.sin
        stored, slots = step.pool.layers[layer_idx], step.rows.kv_slots
        queries = self.ops.rotate_store((queries, keys, values), rotation, slots, stored)
        if step.watched is not None:
            step.watched.take(layer_idx, queries)
        return queries


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """Attention and feed-forward, each on a normalised copy of the residual stream."""

    attention_norm: RMSNorm
    attention: AttentionBlock
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward

    def __call__(
        self, hidden: Tensor, pending: Tensor | None, step: ForwardPass, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """The residual stream [rows, hidden] and what is still to be added to it.

        The next norm adds it: one pass over the rows instead of two. Never in place.
        """
        hidden, normed = self.attention_norm.after(hidden, pending)
        attended = self.attention(normed, step, layer_idx)
        hidden, normed = self.feed_forward_norm.after(hidden, attended)
        return hidden, self.feed_forward(normed)

    def store(
        self, hidden: Tensor, pending: Tensor | None, step: ForwardPass, layer_idx: int
    ) -> None:
        """Write the rows' keys and values and nothing else."""
        self.attention.store(self.attention_norm.after(hidden, pending)[1], step, layer_idx)


@dataclass(frozen=True, eq=False)
class NearPass:
    """The same rows over another pool, which holds a part of the text: for all later layers."""

    rows: Rows
    pool: KVPool  # of those layers alone
    first_layer: int


@dataclass(frozen=True, eq=False)
class DecoderOutput:
    """What a forward returns."""

    logits: Tensor  # [logit rows, vocab] f32
    taps: Tensor  # [rows, taps, hidden], in the order asked for


@dataclass(frozen=True, eq=False)
class Decoder:
    """A loaded model. Immutable, and the same rows over the same pool give the same bits."""

    geometry: Geometry
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[DecoderLayer, ...]
    final_norm: RMSNorm
    head: Linear
    rotary: Rotary
    prepare_attention: PrepareAttention
    ops: LayerOps = TORCH_OPS  # a draft head built for this target takes them too

    @torch.inference_mode()
    def forward(
        self,
        rows: Rows,
        pool: KVPool,
        logit_rows: Tensor | None,
        taps: tuple[int, ...] = (),
        near: NearPass | None = None,
        watched: Watched | None = None,
    ) -> DecoderOutput:
        """Run all rows, write their keys and values at `rows.kv_slots`, return what was asked.

        `logit_rows` [n] i64 are the rows whose logits are wanted, None all of them. A tap b in
        0..layers is the whole residual stream entering layer b; the last one is what leaves the
        last layer, *before* the final norm. With `near`, its layers read and write that pool.
        """
        self._check_taps(taps)
        reaches = [layer.attention.rule.reach for layer in self.layers]
        rotation = self.rotary.at(rows.positions, self.ops.turn)
        attend = self.prepare_attention(rows, reaches)
        step = ForwardPass(rows, pool, rotation, attend, watched)
        n_far, near_step = len(self.layers), step
        if near is not None:
            n_far, attend = near.first_layer, self.prepare_attention(near.rows, reaches)
            near_step = ForwardPass(near.rows, near.pool, rotation, attend)
        hidden = functional.embedding(rows.tokens, self.embedding)
        pending: Tensor | None = None
        captured = {0: hidden}
        # A prompt does not need what leaves the last layer: one part in 32 of an 8B model's work.
        is_asked = logit_rows is None or logit_rows.shape[0] > 0 or len(self.layers) in taps
        for layer_idx, layer in enumerate(self.layers):
            own, idx = (step, layer_idx) if layer_idx < n_far else (near_step, layer_idx - n_far)
            if layer_idx + 1 == len(self.layers) and not is_asked:
                layer.store(hidden, pending, own, idx)
                break
            hidden, pending = layer(hidden, pending, own, idx)
            if layer_idx + 1 in taps:
                hidden, pending = hidden + pending, None
                captured[layer_idx + 1] = hidden
        stacked = _stack([captured[b] for b in taps], hidden)
        if logit_rows is not None:
            hidden = hidden[logit_rows]
            pending = None if pending is None else pending[logit_rows]
        logits = self.head(self.final_norm.after(hidden, pending)[1])
        return DecoderOutput(logits.float(), stacked)

    def watch(self, n_rows: int, rows: Tensor | None = None) -> Watched:
        """Room for the queries of so many rows: of these, or of all there are."""
        attention = self.geometry.attention
        shape = (self.geometry.n_layers, n_rows, attention.n_heads, attention.head_dim)
        return Watched(self.embedding.new_empty(shape), rows)

    def allocate_pool(self, n_slots: int) -> KVPool:
        """An empty pool that fits this model; one of the slots is the inert one."""
        attention = self.geometry.attention
        shape = (self.geometry.n_layers, n_slots, attention.n_kv_heads, attention.head_dim)
        return allocate_pool(shape, self.embedding.dtype, self.embedding.device)

    @property
    def lost(self) -> AerieError | None:
        """Why no further pass can be run; of a target of several parts, that one is gone."""
        return None

    def moved(self, pool: KVPool, source: Tensor, destination: Tensor) -> None:
        """Slots of a pool were copied, none where it says -1; other parts of a target do it too."""

    def _check_taps(self, taps: tuple[int, ...]) -> None:
        for boundary in taps:
            if not 0 <= boundary <= self.geometry.n_layers:
                raise UsageError(
                    f"tap {boundary} does not exist: boundaries are 0 (the embeddings) to "
                    f"{self.geometry.n_layers} (what leaves the last layer)"
                )


def _stack(parts: list[Tensor], hidden: Tensor) -> Tensor:
    if parts:
        return torch.stack(parts, dim=1)
    return hidden.new_empty((hidden.shape[0], 0, hidden.shape[1]))
