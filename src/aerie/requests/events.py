"""What a step tells the outside: tokens, ends, errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenEvent:
    """Tokens of one request that were decided in this step, in order."""

    request_id: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class FinishEvent:
    """A request has ended: `stop`, `length`, `cancelled` or `error`."""

    request_id: int
    reason: str
    error: str | None = None


Event = TokenEvent | FinishEvent
