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
        self._retired: dict[Host, set[int]] = {}  # engines that finish these groups, then end
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Listen to the engine, which loads; requests get 503 until that is done."""
        self._loop = asyncio.get_running_loop()
        self._hook(self._host)

    def stop(self) -> None:
        """End the engine after the step it is in; one that loads or hangs is not waited for."""
        for retired in tuple(self._retired):
            self._unhook(retired)
            retired.end(0)
        self._unhook(self._host)
        self._loop = None
        self._host.end(STOP_SECONDS if self.loaded is not None or self.failure else 0)

    def adopt(self, host: Host, facts: Facts, numbers: Numbers) -> None:
        """From now on requests go to another engine; this one finishes what it has, and ends."""
        elsewhere = set[int]().union(*self._retired.values())
        old, self._host, self.loaded, self.numbers = self._host, host, facts, numbers
        self._hook(host)
        self._retired[old] = self._open.keys() - elsewhere
        self._end_if_done(old)

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
    def n_retiring(self) -> int:
        """Samples that an engine finishes which takes in no more."""
        keys = set[int]().union(*self._retired.values())
        return sum(len(self._open[key].asks) for key in keys & self._open.keys())

    @property
    def is_quiet(self) -> bool:
        """Whether no client waits for an answer."""
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
        """Their client waits no more: what still runs is cancelled before the next step."""
        if self._open.pop(group.key, None) is not None:
            self.pending_tokens -= group.n_tokens
            host = next((old for old, keys in self._retired.items() if group.key in keys), None)
            (host or self._host).line.send(Abandon(group.key))
            if host is not None:
                self._retired[host].remove(group.key)
                self._end_if_done(host)

    def forget(self) -> None:
        """Drop the KV kept of texts that have ended, before anything that is asked after this."""
        self.ready()
        self._host.line.send(Forget())

    def _hear(self, host: Host) -> None:
        """A line has something, or has ended."""
        try:
            for message in host.line.receive():
                self._heed(host, message)
        except LineEnded:
            self._unhook(host)
            if host is self._host:
                self._fail(host.last_words())
            else:
                self._lose(host)

    def _heed(self, host: Host, message: Batch | Begun | Facts | Failed) -> None:
        if isinstance(message, Batch):
            if host is self._host:
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
        elif host is self._host:
            self._fail(message.reason)

    def _lose(self, host: Host) -> None:
        """A retired engine died: the requests it was to finish fail, no others."""
        LOG.error("an engine that was to finish its requests failed: %s", host.last_words())
        for key in self._retired[host] & self._open.keys():
            self._open[key].items.put_nowait(_gone())

    def _end_if_done(self, host: Host) -> None:
        """End a retired engine that has nothing left to finish, without waiting for that."""
        if not self._retired[host] and self._loop is not None:
            del self._retired[host]
            self._unhook(host)
            self._loop.run_in_executor(None, host.end, STOP_SECONDS)

    def _fail(self, reason: str) -> None:
        if self.state is State.FAILED:
            return  # its last words were followed by its end
        if self.loaded is not None:  # else it is the last thing this server says
            LOG.error("the engine failed: %s", reason)
        self.failure = reason
        self.state = State.FAILED
        for group in self._open.values():
            group.items.put_nowait(_gone())

    def _hook(self, host: Host) -> None:
        assert self._loop is not None
        self._loop.add_reader(host.line.fileno(), self._hear, host)

    def _unhook(self, host: Host) -> None:
        if self._loop is not None:
            self._loop.remove_reader(host.line.fileno())


def _gone() -> ApiError:
    return ApiError(503, "the engine failed while this request ran; see the server's log")
