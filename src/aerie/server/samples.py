"""What passes between the event loop and the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aerie.api import Completion, Engine
from aerie.engine.params import SamplingParams
from aerie.engine.request import Request
from aerie.engine.request import State as RequestState
from aerie.text.chat import ChatTemplate


class State(Enum):
    """Whether requests can be taken in."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True)
class Loaded:
    """What the thread works with."""

    engine: Engine
    template: ChatTemplate


@dataclass(frozen=True)
class Ask:
    """One sample of one prompt."""

    prompt: Sequence[int]
    params: SamplingParams
    sample_index: int

    @property
    def n_tokens(self) -> int:
        """The most it can occupy."""
        return len(self.prompt) + self.params.max_tokens


def prompt_tokens(asks: Sequence[Ask]) -> int:
    """Tokens of the prompts; samples of one prompt share it."""
    return sum(len(ask.prompt) for ask in asks if ask.sample_index == 0)


@dataclass(frozen=True)
class Accepted:
    """All samples of a group are in the engine; nothing comes before it but an exception."""


@dataclass(frozen=True)
class Piece:
    """What a step added to one sample."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class End:
    """A sample is over."""

    index: int
    completion: Completion
    entered: float = 0.0  # time.monotonic(), as below
    started: float = 0.0  # when the engine began with it


@dataclass(frozen=True)
class Round:
    """The tree of a round and what became of it, for those who asked to see them."""

    index: int
    tree: dict[str, Any]


Item = Accepted | Piece | Round | End | Exception


@dataclass(eq=False)
class Group:
    """The samples of one HTTP request; `items` belongs to the event loop."""

    asks: tuple[Ask, ...]
    shows_rounds: bool = False
    items: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    ids: set[int] = field(default_factory=set)  # of the engine; those that are not over
    is_closed: bool = False

    @property
    def n_tokens(self) -> int:
        """The most all of them can occupy."""
        return sum(ask.n_tokens for ask in self.asks)


@dataclass(eq=False)
class Seat:
    """One sample in the engine."""

    group: Group
    index: int
    request: Request
    entered: float  # time.monotonic()
    started: float | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it has no slot, yet or any more."""
        return self.request.state is RequestState.WAITING
