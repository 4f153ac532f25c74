"""What passes between the event loop and the engine: values that a process can send another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from aerie.completion import Completion
from aerie.config import EngineConfig
from aerie.requests.admission import Limits
from aerie.requests.params import SamplingParams
from aerie.requests.request import Scored
from aerie.text.chat import ChatTemplate
from aerie.text.dialects import Dialect
from aerie.text.tokenizer import Tokenizer

SCORED = ("logprobs", "prompt_logprobs")  # fields of a completion


class State(Enum):
    """Whether requests can be taken in."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True)
class Facts:
    """Of an engine that is loaded; none of them changes."""

    tokenizer: Tokenizer
    template: ChatTemplate
    config: EngineConfig  # everything chosen
    limits: Limits
    device: str
    dtype: str
    n_pages: int  # of KV memory, the inert one included
    page_size: int
    load_seconds: Mapping[str, float]  # by phase
    dialect: Dialect  # of its calls of tools
    writes_harmony: bool = False  # chats, in place of the template

    @property
    def n_slots(self) -> int:
        """Tokens whose KV there is room for."""
        return (self.n_pages - 1) * self.page_size


@dataclass(frozen=True)
class Numbers:
    """How an engine stands after a step."""

    n_running: int = 0  # samples that hold a slot
    n_waiting: int = 0  # samples that wait for one
    n_free_pages: int = 0  # those that are only kept included
    n_graphs: int = 0
    reason: str | None = None  # the policy's, for its last round


@dataclass(frozen=True)
class Ask:
    """One sample of one prompt."""

    prompt: Sequence[int]
    params: SamplingParams
    sample_index: int
    echoed: str | None = None  # the prompt's text, where the answer begins with it

    @property
    def n_tokens(self) -> int:
        """The most it can occupy."""
        return len(self.prompt) + self.params.max_tokens

    @property
    def n_prompt_scores(self) -> int:
        """Log-probabilities of its prompt's tokens and of their alternatives."""
        n_best = self.params.prompt_logprobs
        return 0 if n_best is None else len(self.prompt) * (1 + n_best)


def prompt_tokens(asks: Sequence[Ask]) -> int:
    """Tokens of the prompts; samples of one prompt share it."""
    return sum(len(ask.prompt) for ask in asks if ask.sample_index == 0)


@dataclass(frozen=True)
class Accepted:
    """All samples of a group are in the engine; nothing comes before it but an exception."""


@dataclass(frozen=True)
class Piece:
    """What a step added to one sample, or all of it at once."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    scored: tuple[Scored, ...] = ()
    is_first: bool = False
    prompt_scored: tuple[Scored, ...] = ()  # of the first piece, where they were asked for

    @property
    def n_scored(self) -> int:
        """Tokens of which there is more to tell than their text."""
        return len(self.scored) + len(self.prompt_scored)


@dataclass(frozen=True)
class End:
    """A sample is over."""

    index: int
    completion: Completion  # on the line without its scores, which come before it
    entered: float = 0.0  # time.monotonic(), as below
    started: float = 0.0  # when the engine began with it


@dataclass(frozen=True)
class Round:
    """The tree of a round and what became of it, for a client that asked to see them."""

    index: int
    tree: dict[str, Any]


@dataclass(frozen=True)
class Scores:
    """Some of a sample's scores, which are many: each message is read in a few milliseconds."""

    index: int
    name: str  # of the completion's field they belong to
    part: tuple[Scored, ...]


Item = Accepted | Piece | Round | End | Exception


@dataclass(frozen=True)
class Submit:
    """To the engine: the samples of one HTTP request, and whether their rounds are told."""

    key: int  # of the group
    asks: tuple[Ask, ...]
    shows_rounds: bool


@dataclass(frozen=True)
class Abandon:
    """To the engine: the client of these waits no more."""

    key: int


@dataclass(frozen=True)
class Forget:
    """To the engine: drop the KV kept of texts that have ended."""


@dataclass(frozen=True)
class Begun:
    """From the engine, as its first message: nothing is wrong so far, and it loads."""


@dataclass(frozen=True)
class Batch:
    """From the engine: what a step decided, by group, and how things stand now."""

    items: Sequence[tuple[int, Item | Scores]]
    numbers: Numbers


@dataclass(frozen=True)
class Failed:
    """From the engine, as its last message: why it ended."""

    reason: str


@dataclass(eq=False)
class Group:
    """The samples of one HTTP request, as its answer waits for them."""

    key: int
    asks: tuple[Ask, ...]
    items: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    scores: dict[tuple[int, str], list[Scored]] = field(default_factory=dict)

    def take(self, item: Item | Scores) -> None:
        """Queue what came, with the scores that came before it."""
        if isinstance(item, Scores):
            self.scores.setdefault((item.index, item.name), []).extend(item.part)
            return
        if self.scores and isinstance(item, Piece) and item.is_first:
            of_prompt = self.scores.get((item.index, "prompt_logprobs"), ())
            item = replace(item, prompt_scored=tuple(of_prompt))
        elif self.scores and isinstance(item, End):
            names = (name for name in SCORED if (item.index, name) in self.scores)
            own: Any = {name: tuple(self.scores.pop((item.index, name))) for name in names}
            item = replace(item, completion=replace(item.completion, **own))
        self.items.put_nowait(item)

    @property
    def n_tokens(self) -> int:
        """The most all of them can occupy."""
        return sum(ask.n_tokens for ask in self.asks)
