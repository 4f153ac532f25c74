"""The EAGLE-3 draft head: one forward over ragged rows, for every dialect.

The row of position i pairs the target's hidden state *of* position i with the token *after* it:
`rows.tokens` holds t[i + 1], `rows.positions` holds i, and the logits are about t[i + 2]. After a
verification the rows of accepted tokens are extended again from the target's own states; what
the head made up for them while drafting is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.attention.contract import PrepareAttention, Reach
from aerie.attention.pool import KVPool, allocate_pool
from aerie.attention.rows import Rows
from aerie.errors import UsageError
from aerie.models.decoder import AttentionBlock, DecoderLayer, ForwardPass
from aerie.models.eagle3.values import HeadSummary
from aerie.models.feed_forward import FeedForward
from aerie.models.linear import Linear
from aerie.models.norm import RMSNorm
from aerie.models.rope import Rotary, Rotation

Observe = Callable[[str, Tensor], None]  # told (stage name, tensor) as a forward reaches it


def ignore(name: str, tensor: Tensor) -> None:
    """The observer of an ordinary run."""


@dataclass(frozen=True, eq=False)
class FeatureMixer:
    """Turns the target's captured states into the head's width."""

    target_norm: RMSNorm | None  # the target's final norm, for heads that read its final state
    input_norm: RMSNorm | None  # over all states at once
    chunk_norms: tuple[RMSNorm, ...]  # one per state, or none
    fc: Linear | None

    def __call__(self, taps: Tensor) -> Tensor:
        """[rows, captures, target hidden] to [rows, hidden]."""
        if self.target_norm is not None:
            taps = self.target_norm(taps)
        if self.chunk_norms:
            parts = [norm(taps[:, k]) for k, norm in enumerate(self.chunk_norms)]
            taps = torch.stack(parts, dim=1)
        joined = taps.flatten(1)
        if self.input_norm is not None:
            joined = self.input_norm(joined)
        return joined if self.fc is None else self.fc(joined)


@dataclass(frozen=True, eq=False)
class FusionLayer:
    """The first draft layer: it attends from the embedding and the hidden state side by side."""

    embedding_norm: RMSNorm
    hidden_norm: RMSNorm
    attention: AttentionBlock
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward
    is_residual_normed: bool

    def __call__(
        self, x: Tensor, embedded: Tensor, step: ForwardPass, observe: Observe
    ) -> tuple[Tensor, Tensor]:
        """x and embedded [rows, hidden] to the residual stream and what is to be added to it."""
        normed, joined = self._joined(x, embedded)
        attended = self.attention(joined, step, 0)
        observe("attn_out", attended)
        residual = normed if self.is_residual_normed else x
        hidden, ready = self.feed_forward_norm.after(residual, attended)
        fed = self.feed_forward(ready)
        observe("ffn_out", fed)
        return hidden, fed

    def store(self, x: Tensor, embedded: Tensor, step: ForwardPass) -> None:
        """Write keys and values, and compute nothing else."""
        self.attention.store(self._joined(x, embedded)[1], step, 0)

    def _joined(self, x: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.hidden_norm(x)
        return normed, torch.cat((self.embedding_norm(embedded), normed), dim=-1)


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """What a forward of the head returns, for the rows that were asked for."""

    hidden: Tensor  # [asked, hidden], what the next draft step reads
    logits: Tensor  # [asked, draft vocab], as they were multiplied or, where scaled, f32
    normed: Tensor  # [asked, hidden], what the LM head read


@dataclass(frozen=True, eq=False)
class Eagle3Head:
    """A loaded draft head. Immutable, and the same rows over the same pool give the same bits."""

    summary: HeadSummary
    embedding: Tensor  # [vocab, hidden]
    mixer: FeatureMixer
    first: FusionLayer
    extra: tuple[DecoderLayer, ...]
    final_norm: RMSNorm
    output: Linear
    token_map: Tensor | None  # [draft vocab] i64, target id of each draft id; None: the same
    rotary: Rotary
    prepare_attention: PrepareAttention

    @property
    def taps(self) -> tuple[int, ...]:
        """The boundaries to ask the target for, in this order."""
        return self.summary.convention.boundaries

    @property
    def reach(self) -> Reach:
        """How far back its keys and values matter; further layers see through earlier ones."""
        return Reach() if self.extra else self.summary.convention.reach

    @torch.inference_mode()
    def extend(
        self,
        rows: Rows,
        taps: Tensor,
        pool: KVPool,
        asked: Tensor | None = None,
        observe: Observe = ignore,
    ) -> HeadOutput:
        """Run rows whose hidden states come from the target: prefill, and after verification.

        `taps` [rows, captures, target hidden] is the decoder's output for `self.taps`. `asked`
        [n] i64 are the rows whose results are wanted, all of them when it is None.
        """
        wanted = (rows.n_rows, len(self.taps), self.summary.geometry.target_hidden_size)
        if taps.shape != wanted:
            raise UsageError(f"taps have shape {list(taps.shape)}, this head needs {list(wanted)}")
        mixed = self.mixer(taps.to(self.embedding.dtype))
        observe("fc_out", mixed)
        return self._run(mixed, self._forward(rows, pool, None), asked, observe)

    @torch.inference_mode()
    def step(
        self,
        rows: Rows,
        hidden: Tensor,
        pool: KVPool,
        observe: Observe = ignore,
        rotation: Rotation | None = None,
    ) -> HeadOutput:
        """Run rows whose hidden states [rows, hidden] this head returned for their parents.

        `rotation` is one of `rotations`, where they were computed beforehand.
        """
        wanted = (rows.n_rows, self.summary.geometry.hidden_size)
        if hidden.shape != wanted:
            raise UsageError(f"hidden has shape {list(hidden.shape)}, must be {list(wanted)}")
        step = self._forward(rows, pool, rotation)
        return self._run(hidden.to(self.embedding.dtype), step, None, observe)

    def rotations(self, positions: Sequence[Tensor]) -> list[Rotation]:
        """What steps at several positions [rows] i64 need of them, computed together."""
        return self.rotary.at_each(positions, self.first.attention.ops.turn)

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape."""
        return draft_ids if self.token_map is None else self.token_map[draft_ids]

    def allocate_pool(self, n_slots: int) -> KVPool:
        """An empty pool that fits this head; one of the slots is the inert one."""
        geometry = self.summary.geometry
        shape = (geometry.n_layers, n_slots, geometry.n_kv_heads, geometry.head_dim)
        return allocate_pool(shape, self.embedding.dtype, self.embedding.device)

    def _forward(self, rows: Rows, pool: KVPool, rotation: Rotation | None) -> ForwardPass:
        if rotation is None:
            rotation = self.rotary.at(rows.positions, self.first.attention.ops.turn)
        attend = self.prepare_attention(rows, [self.summary.convention.reach])
        return ForwardPass(rows, pool, rotation, attend)

    def _run(
        self, x: Tensor, step: ForwardPass, asked: Tensor | None, observe: Observe
    ) -> HeadOutput:
        # Not `functional.embedding`: for a few rows its kernel takes 6.3 µs, this one's 2.1 (H200).
        embedded = self.embedding[step.rows.tokens]
        if asked is not None and not len(asked) and not self.extra:
            # Of a prompt only keys and values stay: three quarters of the layer are not needed.
            self.first.store(x, embedded, step)
            return HeadOutput(x[:0], self.output(x[:0]), x[:0])
        hidden, pending = self.first(x, embedded, step, observe)
        for layer_idx, layer in enumerate(self.extra, start=1):
            hidden, pending = layer(hidden, pending, step, layer_idx)
            observe(f"layers.{layer_idx}", hidden + pending)
        if asked is not None:
            hidden, pending = hidden[asked], pending[asked]
        hidden, normed = self.final_norm.after(hidden, pending)
        observe("pre_head_hidden", normed)
        convention = self.summary.convention
        logits = self.output(normed)
        if convention.logit_scale != 1.0:
            logits = logits.float() * convention.logit_scale
        observe("logits", logits)
        return HeadOutput(normed if convention.is_output_normed else hidden, logits, normed)
