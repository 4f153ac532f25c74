"""The engine's thread: requests come over a queue, what was decided goes to the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from aerie.api import Engine, Update
from aerie.errors import AerieError, EngineFailedError
from aerie.server.problems import RETRY_LATER, ApiError
from aerie.server.rounds import describe_round
from aerie.server.samples import Accepted, Ask, End, Group, Item, Loaded, Piece, Round, Seat, State
from aerie.tune.warm import Idle

LOG = logging.getLogger("aerie.server")
STOP_SECONDS = 10.0


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
        self._seats: dict[int, Seat] = {}  # by engine id; the thread's own
        self._sent: list[tuple[Group, Item]] = []
        self._open: set[Group] = set()  # the event loop's own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to load; requests get 503 until that is done."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in; one that loads or hangs is left to itself."""
        self._todo.put(None)
        self._thread.join(STOP_SECONDS if self.loaded is not None or self.failure else 0)

    def drain(self) -> None:
        """Take in nothing new; what runs goes on."""
        if self.state is not State.FAILED:
            self.state = State.DRAINING

    def give_up(self) -> None:
        """End what still runs; its clients are told."""
        for group in tuple(self._open):
            group.items.put_nowait(ApiError(503, "the server ends before this request does"))
            self.leave(group)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._open

    def counts(self) -> tuple[int, int]:
        """Samples that hold a slot, and samples that wait for one."""
        seats = tuple(self._seats.values())
        n_waiting = sum(seat.is_waiting for seat in seats)
        return len(seats) - n_waiting, n_waiting

    def ready(self) -> Loaded:
        """Engine and template, or the reason why there is nothing to serve with."""
        if self.state is not State.READY or self.loaded is None:
            reason = "the engine failed; see the server's log" if self.failure else self.state.value
            raise ApiError(
                503, f"not available: {reason}", headers={} if self.failure else RETRY_LATER
            )
        return self.loaded

    async def enter(self, asks: Sequence[Ask], shows_rounds: bool = False) -> Group:
        """Hand samples to the engine; returns when it has taken them all in, or raises."""
        self.ready()
        group = Group(tuple(asks), shows_rounds)
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
        self._open.add(group)
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
            self._open.remove(group)
            self.pending_tokens -= group.n_tokens
            self._todo.put(lambda: self._abandon(group))

    def forget(self) -> None:
        """Drop the KV kept of texts that have ended, before anything that is asked after this."""
        self._todo.put(self.ready().engine.core.memory.forget)

    def _run(self) -> None:
        try:
            self.loaded = self._load()
            if self.state is State.LOADING:
                self.state = State.READY
            engine = self.loaded.engine
            idle = Idle(engine.core) if engine.config.graphs.warm == "quick" else None
            while self._take(idle):
                self._step(engine)
        except Exception as failure:  # whatever it is, waiting clients must hear of it
            self._fail(failure)

    def _take(self, idle: Idle | None) -> bool:
        """Do what waits; records or sleeps while there is nothing to decode. False: the end."""
        assert self.loaded is not None
        while not self._todo.empty() or self.loaded.engine.core.is_idle:
            if self._todo.empty() and idle:
                idle.record_one()
                continue
            todo = self._todo.get()
            if todo is None:
                return False
            todo()
            self._hand_out()
        return True

    def _step(self, engine: Engine) -> None:
        began = time.monotonic()
        updates = engine.step()
        if engine.failure is not None:
            raise EngineFailedError(engine.failure)
        for seat in self._seats.values():
            if seat.started is None and not seat.is_waiting:
                seat.started = began
        self._show(engine)
        for update in updates:
            own = self._seats.get(update.request_id)
            if own is not None:
                self._tell(engine, own, update)
        self._hand_out()

    def _show(self, engine: Engine) -> None:
        """Before what a round added is told, and its requests are gone."""
        trees = engine.core.launcher.trees
        for request_id in trees:
            seat = self._seats.get(request_id)
            if seat is not None and seat.group.shows_rounds:
                shown = describe_round(trees[request_id], engine.tokenizer)
                self._sent.append((seat.group, Round(seat.index, shown)))

    def _tell(self, engine: Engine, seat: Seat, update: Update) -> None:
        group, index, request = seat.group, seat.index, seat.request
        n_all, n_new = len(request.output), len(update.token_ids)
        scored = tuple(request.scored[n_all - n_new : n_all])
        is_first = n_new == n_all
        of_prompt = tuple(request.prompt_scored) if is_first else ()
        piece = Piece(index, update.text, update.token_ids, scored, is_first, of_prompt)
        self._sent.append((group, piece))
        if update.finish_reason is not None:
            del self._seats[update.request_id]
            group.ids.remove(update.request_id)
            completion = engine.collect(update.request_id)
            started = seat.started or time.monotonic()
            self._sent.append((group, End(index, completion, seat.entered, started)))

    def _submit(self, group: Group) -> None:
        if group.is_closed:
            return  # its client left while it waited here
        if self.state is State.FAILED or self.loaded is None:
            self._sent.append((group, _gone()))
            return
        engine, now = self.loaded.engine, time.monotonic()
        try:
            for index, ask in enumerate(group.asks):
                request_id = engine.submit(ask.prompt, ask.params, ask.sample_index)
                group.ids.add(request_id)
                request = engine.core.request(request_id)
                self._seats[request_id] = Seat(group, index, request, now)
        except EngineFailedError:
            self._sent.append((group, _gone()))
            raise
        except Exception as error:  # it belongs to this request, which ends alone
            self._abandon(group)
            self._sent.append((group, error))
            return
        self._sent.append((group, Accepted()))

    def _abandon(self, group: Group) -> None:
        for request_id in group.ids:
            assert self.loaded is not None
            del self._seats[request_id]
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
        words = str(failure) if is_known else f"{type(failure).__name__}: {failure}"
        LOG.error("the engine failed: %s", words, exc_info=None if is_known else failure)
        self.failure = words
        self.state = State.FAILED
        waiting = {seat.group for seat in self._seats.values()}
        self._sent += [(group, _gone()) for group in waiting]
        self._seats.clear()
        for group in waiting:
            group.ids.clear()
        self._hand_out()
        while (todo := self._todo.get()) is not None:
            todo()  # whoever came in between is told as well
            self._hand_out()


def _gone() -> ApiError:
    return ApiError(503, "the engine failed while this request ran; see the server's log")
