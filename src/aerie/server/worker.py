"""The engine's thread: requests come over a queue, what was decided goes to the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aerie.api import Completion, Engine, Update
from aerie.engine.params import SamplingParams
from aerie.engine.round_tree import round_tree
from aerie.errors import AerieError
from aerie.server.problems import ApiError
from aerie.server.rounds import describe_round
from aerie.text.chat import ChatTemplate

LOG = logging.getLogger("aerie.server")
RETRY_SECONDS = 1


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
    ids: dict[int, int] = field(default_factory=dict)  # engine id: index, of those that run
    is_closed: bool = False

    @property
    def n_tokens(self) -> int:
        """The most all of them can occupy."""
        return sum(ask.n_tokens for ask in self.asks)


class Worker:
    """Runs an engine in a thread of its own. Methods without an underscore are the event loop's."""

    def __init__(self, load: Callable[[], Loaded], max_pending_tokens: int) -> None:
        self.state = State.LOADING
        self.failure = ""
        self.loaded: Loaded | None = None
        self.pending_tokens = 0
        self._load = load
        self._most = max_pending_tokens
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._groups: dict[int, Group] = {}  # by engine id; the thread's own
        self._sent: list[tuple[Group, Item]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to load; requests get 503 until that is done."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in; nobody is served any more."""
        self._todo.put(None)
        self._thread.join()

    def drain(self) -> None:
        """Take in nothing new; what runs goes on."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING

    def ready(self) -> Loaded:
        """Engine and template, or the reason why there is nothing to serve with."""
        if self.state is not State.READY or self.loaded is None:
            reason = "the engine failed; see the server's log" if self.failure else self.state.value
            retry = {} if self.failure else {"retry-after": str(RETRY_SECONDS)}
            raise ApiError(503, f"not available: {reason}", headers=retry)
        return self.loaded

    async def enter(self, asks: Sequence[Ask], shows_rounds: bool = False) -> Group:
        """Hand samples to the engine; returns when it has taken them all in, or raises."""
        self.ready()
        group = Group(tuple(asks), shows_rounds)
        if self.pending_tokens + group.n_tokens > self._most:
            raise ApiError(
                429,
                f"{self.pending_tokens} tokens are pending, these may need {group.n_tokens} more,"
                f" the limit is {self._most}: retry later or lower max_tokens",
                headers={"retry-after": str(RETRY_SECONDS)},
            )
        self.pending_tokens += group.n_tokens
        self._todo.put(lambda: self._submit(group))
        try:
            first = await group.items.get()
        except asyncio.CancelledError:
            self.leave(group)
            raise
        if isinstance(first, Exception):
            self.leave(group)
            raise first
        return group

    def leave(self, group: Group) -> None:
        """Nobody waits for these any more: what still runs is cancelled before the next step."""
        if not group.is_closed:
            group.is_closed = True
            self.pending_tokens -= group.n_tokens
            self._todo.put(lambda: self._abandon(group))

    def forget(self) -> None:
        """Drop the KV kept of texts that have ended, before anything that is asked after this."""
        self._todo.put(self.ready().engine.core.parts.memory.forget)

    def _run(self) -> None:
        try:
            self.loaded = self._load()
            if self.state is State.LOADING:
                self.state = State.READY
            while self._take():
                self._step(self.loaded.engine)
        except Exception as failure:  # whatever it is, waiting clients must hear of it
            self._fail(failure)

    def _take(self) -> bool:
        """Do what waits; sleeps while there is nothing to decode. False: the end."""
        assert self.loaded is not None
        while not self._todo.empty() or self.loaded.engine.core.is_idle:
            todo = self._todo.get()
            if todo is None:
                return False
            todo()
            self._hand_out()
        return True

    def _step(self, engine: Engine) -> None:
        updates = engine.step()
        self._show(engine)
        for update in updates:
            group = self._groups.get(update.request_id)
            if group is not None:
                self._tell(engine, group, update)
        self._hand_out()

    def _show(self, engine: Engine) -> None:
        """Before what a round added is told, and its requests are gone."""
        outcome, engine.core.last_outcome = engine.core.last_outcome, None
        if outcome is None:
            return
        for row, request_id in enumerate(outcome.request_ids):
            group = self._groups.get(request_id)
            if group is not None and group.shows_rounds:
                tree = describe_round(round_tree(outcome, row), engine.tokenizer)
                self._sent.append((group, Round(group.ids[request_id], tree)))

    def _tell(self, engine: Engine, group: Group, update: Update) -> None:
        request = engine.core.request(update.request_id)
        index = group.ids[update.request_id]
        n_all = len(request.output)
        span = slice(n_all - len(update.token_ids), n_all)
        logprobs = tuple(request.logprobs[span]) if request.params.logprobs else ()
        self._sent.append((group, Piece(index, update.text, update.token_ids, logprobs)))
        if update.finish_reason is not None:
            del self._groups[update.request_id], group.ids[update.request_id]
            self._sent.append((group, End(index, engine.collect(update.request_id))))

    def _submit(self, group: Group) -> None:
        if self.state is State.FAILED or self.loaded is None:
            self._sent.append((group, _gone()))
            return
        engine = self.loaded.engine
        try:
            for index, ask in enumerate(group.asks):
                request_id = engine.submit(ask.prompt, ask.params, ask.sample_index)
                group.ids[request_id] = index
                self._groups[request_id] = group
        except AerieError as error:
            self._abandon(group)
            self._sent.append((group, error))
            return
        self._sent.append((group, Accepted()))

    def _abandon(self, group: Group) -> None:
        for request_id in group.ids:
            assert self.loaded is not None
            del self._groups[request_id]
            self.loaded.engine.abandon(request_id)
        group.ids.clear()

    def _hand_out(self) -> None:
        """Everything of a step in one call into the event loop."""
        sent, self._sent = self._sent, []
        if not sent:
            return

        def deliver() -> None:
            for group, item in sent:
                group.items.put_nowait(item)

        assert self._loop is not None
        self._loop.call_soon_threadsafe(deliver)

    def _fail(self, failure: Exception) -> None:
        # What aerie raises on purpose says what to do; anything else is ours to find.
        is_known = isinstance(failure, AerieError)
        self.failure = str(failure) if is_known else f"{type(failure).__name__}: {failure}"
        LOG.error("the engine failed: %s", self.failure, exc_info=None if is_known else failure)
        self.state = State.FAILED
        waiting = set(self._groups.values())
        self._sent = [(group, _gone()) for group in waiting]
        self._groups.clear()
        for group in waiting:
            group.ids.clear()
        self._hand_out()
        while (todo := self._todo.get()) is not None:
            todo()  # whoever came in between is told as well
            self._hand_out()


def _gone() -> ApiError:
    return ApiError(503, "the engine failed while this request ran; see the server's log")
