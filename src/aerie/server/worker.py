"""The event loop's side of the line: requests are entered, what the engine says is handed out."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence

from aerie.server.host import Host
from aerie.server.line import LineEnded
from aerie.server.problems import RETRY_LATER, ApiError
from aerie.server.samples import (
    Abandon,
    Ask,
    Batch,
    Begun,
    Facts,
    Failed,
    Forget,
    Group,
    Numbers,
    State,
    Submit,
)

LOG = logging.getLogger("aerie.server")
STOP_SECONDS = 10.0


class Worker:
    """An engine elsewhere, as the event loop sees it."""

    def __init__(self, host: Host, max_pending_tokens: int) -> None:
        self.state = State.LOADING
        self.has_begun = False  # to load: what was asked for is there
        self.failure = ""
        self.loaded: Facts | None = None
        self.numbers = Numbers()
        self.pending_tokens = 0
        self._host = host
        self._most = max_pending_tokens
        self._keys = itertools.count()
        self._open: dict[int, Group] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Listen to the engine, which loads; requests get 503 until that is done."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._host.line.fileno(), self._hear)

    def stop(self) -> None:
        """End the engine after the step it is in; one that loads or hangs is not waited for."""
        self._unhook()
        self._host.end(STOP_SECONDS if self.loaded is not None or self.failure else 0)

    def drain(self) -> None:
        """Take in nothing new; what runs goes on."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING

    def give_up(self) -> None:
        """End what still runs; its clients are told."""
        for group in tuple(self._open.values()):
            group.items.put_nowait(ApiError(503, "the server ends before this request does"))
            self.leave(group)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._open

    def ready(self) -> Facts:
        """Facts of the engine, or the reason why there is nothing to serve with."""
        if self.state is not State.READY or self.loaded is None:
            reason = "the engine failed; see the server's log" if self.failure else self.state.value
            raise ApiError(
                503, f"not available: {reason}", headers={} if self.failure else RETRY_LATER
            )
        return self.loaded

    async def enter(self, asks: Sequence[Ask], shows_rounds: bool = False) -> Group:
        """Hand samples to the engine; returns when it has taken them all in, or raises."""
        self.ready()
        group = Group(next(self._keys), tuple(asks))
        if group.n_tokens > self._most:
            raise ApiError(
                400,
                f"these may need {group.n_tokens} tokens, the server takes in {self._most}:"
                " lower max_tokens or n, or send fewer or shorter prompts",
                "max_tokens",
                "context_length_exceeded",
            )
        if self.pending_tokens + group.n_tokens > self._most:
            raise ApiError(
                429,
                f"{self.pending_tokens} tokens are pending, these may need {group.n_tokens} more,"
                f" the limit is {self._most}: retry later or lower max_tokens",
                headers=RETRY_LATER,
            )
        self.pending_tokens += group.n_tokens
        self._open[group.key] = group
        self._host.line.send(Submit(group.key, group.asks, shows_rounds))
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
        if self._open.pop(group.key, None) is not None:
            self.pending_tokens -= group.n_tokens
            self._host.line.send(Abandon(group.key))

    def forget(self) -> None:
        """Drop the KV kept of texts that have ended, before anything that is asked after this."""
        self.ready()
        self._host.line.send(Forget())

    def _hear(self) -> None:
        """The line has something, or has ended."""
        try:
            for message in self._host.line.receive():
                self._heed(message)
        except LineEnded:
            self._unhook()
            self._fail(self._host.last_words())

    def _heed(self, message: Batch | Begun | Facts | Failed) -> None:
        if isinstance(message, Batch):
            self.numbers = message.numbers
            for key, item in message.items:
                group = self._open.get(key)
                if group is not None:  # else its client left
                    group.take(item)
        elif isinstance(message, Begun):
            self.has_begun = True
        elif isinstance(message, Facts):
            self.loaded = message
            if self.state is State.LOADING:
                self.state = State.READY
        else:
            self._fail(message.reason)

    def _fail(self, reason: str) -> None:
        if self.state is State.FAILED:
            return  # its last words were followed by its end
        if self.loaded is not None:  # else it is the last thing this server says
            LOG.error("the engine failed: %s", reason)
        self.failure = reason
        self.state = State.FAILED
        for group in self._open.values():
            group.items.put_nowait(_gone())

    def _unhook(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._host.line.fileno())
            self._loop = None


def _gone() -> ApiError:
    return ApiError(503, "the engine failed while this request ran; see the server's log")
