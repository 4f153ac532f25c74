"""Sampling as columns: what requests ask for, by seat, and the arguments of the kernels for it.

Options are values in buffers, never variants of code: a graph exists for a greedy batch, one for
everything else and one for grammars. A launcher that calls kernels directly leaves out what no
request asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from aerie.engine.masks import Masks
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request


@dataclass(frozen=True, order=True)
class Options:
    """Which parts of sampling a round computes."""

    noise: bool = False  # some temperature is above zero
    filters: bool = False  # top-k, top-p, min-p
    penalties: bool = False
    bias: bool = False
    floor: bool = False  # min_tokens
    logprobs: bool = False
    grammar: bool = False

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Options:
        """What these ask for."""
        asked = [_asked(request.params) for request in requests]
        return cls(*(any(column) for column in zip(*asked, strict=True))) if asked else cls()

    @property
    def is_greedy(self) -> bool:
        """Nothing but the best token of every row."""
        return self == Options()

    @property
    def recorded(self) -> Options:
        """Those of the graph that computes these: grammars have one, all other options another."""
        if self.grammar:
            return CONSTRAINED
        return GREEDY if self.is_greedy else EVERYTHING

    def holds(self, other: Options) -> bool:
        """Whether a round of these computes what the other one needs."""
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))


GREEDY = Options()
CONSTRAINED = Options(*([True] * len(fields(Options))))
EVERYTHING = replace(CONSTRAINED, grammar=False)  # masks take work, and the host in every round


def _asked(params: SamplingParams) -> tuple[bool, ...]:
    return (
        params.temperature > 0,
        params.temperature > 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0),
        params.has_penalties,
        bool(params.logit_bias),
        params.floor > 0,
        params.logprobs is not None,
        params.grammar is not None,
    )


Column = tuple[str, torch.dtype, float, Callable[[Request], float]]
# Name, dtype, what an empty seat has, and how a request states it.
COLUMNS: tuple[Column, ...] = (
    ("temperature", torch.float32, 0.0, lambda r: r.params.temperature),
    ("top_p", torch.float32, 1.0, lambda r: r.params.top_p),
    ("min_p", torch.float32, 0.0, lambda r: r.params.min_p),
    ("repetition_penalty", torch.float32, 1.0, lambda r: r.params.repetition_penalty),
    ("presence_penalty", torch.float32, 0.0, lambda r: r.params.presence_penalty),
    ("frequency_penalty", torch.float32, 0.0, lambda r: r.params.frequency_penalty),
    ("seed", torch.int64, 0, lambda r: r.job.seed),
    ("sample_index", torch.int64, 0, lambda r: r.job.sample_index),
    ("top_k", torch.int64, 0, lambda r: r.params.top_k),
    ("floor_position", torch.int64, 0, lambda r: len(r.job.prompt) + r.params.floor),
    ("wanted", torch.int64, -1, lambda r: -1 if r.params.logprobs is None else r.params.logprobs),
)
"""Columns by name. `floor_position`: no stop token stands before it."""

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, eq=False)
class Columns:
    """What was asked for, by seat; the host writes it when seats change."""

    numbers: Mapping[str, Tensor]  # [B] each, by the names above
    bias: Tensor  # [B, V] f32
    counts: Tensor  # [2, B, V] i32, tokens of prompt and output; written by rounds too
    biased: list[Request | None]  # whose bias a seat holds; None: it is zero
    masks: Masks

    @classmethod
    def empty(cls, numbers: Mapping[str, Tensor], n_seats: int, vocabulary: int) -> Columns:
        """Without any bias, and nothing counted."""
        device = numbers["seed"].device
        return cls(
            numbers,
            torch.zeros((n_seats, vocabulary), device=device),
            torch.zeros((2, n_seats, vocabulary), dtype=torch.int32, device=device),
            [None] * n_seats,
            Masks(n_seats, vocabulary, str(device)),
        )

    def write(self, n_kept: int, requests: Sequence[Request]) -> None:
        """Whole vocabularies: biases that are not where they belong, and counts of newcomers."""
        for seat in range(len(self.biased)):
            request = requests[seat] if seat < len(requests) else None
            owner = request if request is not None and request.params.logit_bias else None
            if self.biased[seat] is not owner:
                self.bias[seat] = 0.0
                self._write_bias(seat, owner)
        for seat, request in enumerate(requests[n_kept:], n_kept):
            if request.params.has_penalties:
                for row, part in enumerate((request.job.prompt, request.output)):
                    ids = torch.tensor(part, dtype=torch.int64)
                    found = torch.bincount(ids, minlength=self.counts.shape[2]).int()
                    self.counts[row, seat].copy_(found, non_blocking=True)

    def _write_bias(self, seat: int, request: Request | None) -> None:
        self.biased[seat] = request
        if request is not None:
            bias, device = request.params.logit_bias, self.bias.device
            where = torch.tensor(list(bias)).to(device, non_blocking=True)
            values = torch.tensor(list(bias.values()), dtype=torch.float32)
            self.bias[seat, where] = values.to(device, non_blocking=True)

    def arguments(self, options: Options, n: int, layout: Any, stops: Tensor) -> dict[str, Any]:
        """Keyword arguments of `sample_target_tokens` beside logits and layout."""
        found: dict[str, Any] = {}
        names: tuple[str, ...] = ("temperature",)
        if options.noise:
            names += ("seed", "sample_index")
        if options.filters:
            names += ("top_k", "top_p", "min_p")
        if options.penalties:
            names += _PENALTIES
            found |= {
                "prompt_counts": self.counts[0, :n],
                "output_counts": self.counts[1, :n],
                "draft_tokens": layout.draft_tokens,
                "ancestor_bits": layout.ancestor_bits,
            }
        if options.bias:
            found["logit_bias"] = self.bias[:n]
        if options.floor:
            found["stop_tokens"] = stops
            names += ("floor_position",)
        return found | {name: self.numbers[name][:n] for name in names}

    def count(self, n: int, tokens: Tensor, n_emitted: Tensor) -> None:
        """Take in the emitted tokens [B, n] of a round."""
        step = torch.arange(tokens.shape[1], device=tokens.device)
        is_real = (step < n_emitted[:, None]).int()
        self.counts[1, :n].scatter_add_(1, tokens, is_real)
