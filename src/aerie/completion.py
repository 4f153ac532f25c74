"""What a request produced: a value on its own, so that passing it on needs no engine."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.requests.request import Scored, Statistics


@dataclass(frozen=True)
class Completion:
    """What one request produced; `error` is set where it failed, and its text is then a part."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    seed: int
    statistics: Statistics
    logprobs: tuple[Scored, ...] | None = None  # of every token, where they were asked for
    prompt_logprobs: tuple[Scored, ...] | None = None  # of the prompt from its second token on
    error: str | None = None
