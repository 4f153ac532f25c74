"""What a head learns from: the target's states and logits, from the fast runner or any decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from aerie.models.decoder import Decoder
from aerie.models.probe_text import whole_texts
from aerie.train.target_model import TargetRunner


@dataclass(frozen=True, eq=False)
class Features:
    """Of the rows of [batch, length] tokens."""

    taps: Tensor  # [rows, captures * target hidden]
    logits: Tensor  # [rows, draft vocab]


class FeatureSource(Protocol):
    """A frozen target."""

    @property
    def embedding(self) -> Tensor:
        """The target's embedding, [vocab, hidden]."""
        ...

    def features(self, tokens: Tensor, taps: tuple[int, ...]) -> Features:
        """States and logits of every position of [batch, length] tokens."""
        ...


@dataclass(frozen=True, eq=False)
class RunnerFeatures:
    """The built-in target through its training code: whole sequences at once."""

    runner: TargetRunner

    @property
    def embedding(self) -> Tensor:
        """The target's embedding."""
        return self.runner.model.embed_tokens.detach()

    @torch.no_grad()
    def features(self, tokens: Tensor, taps: tuple[int, ...]) -> Features:
        """One forward pass."""
        hidden = self.runner.hidden(tokens, taps)
        return Features(torch.cat(hidden.taps, dim=-1), self.runner.logits(hidden.last))


@dataclass(frozen=True, eq=False)
class DecoderFeatures:
    """Any supported target through the engine's own decoder: slower, and right for all."""

    decoder: Decoder
    draft_ids: Tensor | None = None  # [draft vocab] i64, target ids the head may draft; None: all

    @property
    def embedding(self) -> Tensor:
        """The target's embedding."""
        return self.decoder.embedding

    def features(self, tokens: Tensor, taps: tuple[int, ...]) -> Features:
        """One sequence after another, each with a fresh cache."""
        parts = [self._sequence(sequence, taps) for sequence in tokens]
        return Features(
            torch.cat([part.taps for part in parts]), torch.cat([part.logits for part in parts])
        )

    def _sequence(self, tokens: Tensor, taps: tuple[int, ...]) -> Features:
        rows, pool = whole_texts((tokens,)), self.decoder.allocate_pool(tokens.shape[0] + 1)
        out = self.decoder.forward(rows, pool, None, taps)
        logits = out.logits if self.draft_ids is None else out.logits[:, self.draft_ids]
        # Clones: tensors made in inference mode cannot take part in training.
        return Features(out.taps.flatten(1).clone(), logits.clone())
