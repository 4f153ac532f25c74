"""Batches from a token stream that lies on the device: shuffled windows of several lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.errors import UsageError
from aerie.train.tokenizer import END_ID


@dataclass(frozen=True)
class Stage:
    """From `begins` (share of the budget) on, lengths are drawn with these weights."""

    begins: float
    weights: dict[int, float]


class WindowSource:
    """Windows of one length: every epoch a new offset and a new order."""

    def __init__(self, n_tokens: int, length: int, seed: int) -> None:
        if n_tokens < 2 * length + 2:
            raise UsageError(
                f"a stream of {n_tokens} tokens is too short for windows of {length}; "
                "collect more text or train with shorter sequences"
            )
        self.n_tokens, self.length = n_tokens, length
        self.random = np.random.default_rng((seed, length))
        self.order: list[int] = []

    def draw(self, count: int) -> list[int]:
        """Where the next `count` windows begin."""
        while len(self.order) < count:
            offset = int(self.random.integers(self.length))
            starts = np.arange(offset, self.n_tokens - self.length, self.length)
            self.random.shuffle(starts)
            self.order += starts.tolist()
        drawn, self.order = self.order[:count], self.order[count:]
        return drawn


class Batches:
    """Draws [batch, length] inputs and targets; every batch has the same number of tokens."""

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger],
        n_rows: int,
        stages: tuple[Stage, ...],
        seed: int,
        device: torch.device | str,
        first_token: int | None = END_ID,
    ) -> None:
        lengths = sorted({length for stage in stages for length in stage.weights})
        for length in lengths:
            if n_rows % length:
                raise UsageError(f"{n_rows} rows a step are not a multiple of length {length}")
        # The built-in vocabulary fits int16, so the whole corpus takes 2 bytes a token.
        is_small = tokens.size == 0 or int(tokens.max()) < 1 << 15
        self.stream = torch.from_numpy(tokens.astype(np.int16 if is_small else np.int32)).to(device)
        self.first_token = first_token
        self.n_rows, self.stages = n_rows, stages
        self.sources = {n: WindowSource(tokens.shape[0], n, seed) for n in lengths}
        self.random = np.random.default_rng(seed)

    def length_at(self, fraction: float) -> int:
        """Draw a length for this share of the budget."""
        stage = [stage for stage in self.stages if fraction >= stage.begins][-1]
        lengths = list(stage.weights)
        weights = np.array([stage.weights[n] for n in lengths])
        return int(self.random.choice(lengths, p=weights / weights.sum()))

    def draw(self, fraction: float) -> tuple[Tensor, Tensor]:
        """A batch for this share of the budget."""
        return self.draw_length(self.length_at(fraction))

    def draw_length(self, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and the tokens that follow them, [batch, length] i64.

        A sequence begins with `first_token` whatever stands there in the stream: every text
        that will ever be continued begins so. None leaves it as it is.
        """
        starts = torch.tensor(self.sources[length].draw(self.n_rows // length))
        index = starts.to(self.stream.device)[:, None] + torch.arange(
            length + 1, device=self.stream.device
        )
        window = self.stream[index].long()
        inputs = window[:, :-1].clone()
        if self.first_token is not None:
            inputs[:, 0] = self.first_token
        return inputs, window[:, 1:]
