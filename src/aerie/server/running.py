"""One request under way: what the engine decides becomes an answer, counted on its way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from aerie.completion import Completion
from aerie.server.answers import DONE, Answer, compact, data, event, round_event, written
from aerie.server.keeping import Keeping
from aerie.server.metrics import Metrics
from aerie.server.notes import Note, note_of
from aerie.server.problems import ApiError, ClientLeft, of_failure
from aerie.server.samples import End, Group, Piece, Round, prompt_tokens
from aerie.server.sglang import SglangAnswer
from aerie.server.worker import Worker
from aerie.text.matcher import STOPPED

Result = TypeVar("Result")
# Words of a sample that failed by what was asked for, not by what computed it.
ASKED_FOR = ("BAD_PARAMETER", "ALL_MASKED", STOPPED)
MANY_SCORED = 256  # tokens: twenty alternatives of each take some milliseconds to write


async def unless_left(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of some work; cancelled as soon as its client leaves."""
    task = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Stream(StreamingResponse):
    """Leaves with its client, even one that was gone before the first chunk."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.chunks(), media_type="text/event-stream")
        self.run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.run.leave()


@dataclass(eq=False)
class Run:
    """One request under way."""

    worker: Worker
    metrics: Metrics
    group: Group
    answer: Answer | SglangAnswer
    request: Request
    shows_rounds: bool = False
    keeping: Keeping | None = None
    ended: dict[int, Completion] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)  # when a sample had its first piece,
    last: dict[int, float] = field(default_factory=dict)  # and when its last

    @property
    def note(self) -> Note:
        """What its log line will say."""
        return note_of(self.request.scope)

    def leave(self) -> None:
        """The client waits no more; a second time does nothing."""
        if len(self.ended) < len(self.group.asks) and self.note.problem is None:
            self.note.problem = "the client left"
        self.worker.leave(self.group)

    async def whole(self) -> Response:
        """Everything at once, unless the client leaves before."""
        try:
            await unless_left(self.request, self._collect())
            completions = self._completions()
            if sum(map(_n_scored, completions)) <= MANY_SCORED:
                return JSONResponse(self.answer.body(completions))
            content = await asyncio.to_thread(lambda: written(self.answer.body(completions)))
            return Response(content, media_type="application/json")
        finally:
            self.leave()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Chunks as they are decided; a client that leaves ends the generator, and the samples."""
        try:
            for opening in self.answer.openings():
                yield event(opening)
            async for item in self._items():
                if isinstance(item, Round):
                    if self.shows_rounds:
                        yield round_event(item.index, item.tree)
                elif events := await self._events(item):
                    yield events
            for closing in self.answer.closings(self._completions()):
                yield event(closing)
            yield DONE
        except ApiError as error:
            # The status is long sent: the stream says it, and ends without [DONE].
            self.note.problem = f"{error.status} in its stream: {error}"
            self.metrics.refused(error.status)
            yield event(error.body())

    async def _events(self, item: Piece | End) -> bytes:
        """Events of a stream, none where nothing shows; many scores are written in a thread."""
        make: Callable[[], list[dict[str, Any]]]
        if isinstance(item, End):
            n_scored = _n_scored(item.completion)
            make = partial(self.answer.lasts, item.index, item.completion)
        else:
            n_scored, make = item.n_scored, partial(self.answer.chunks, item)

        def write(encode: Callable[[dict[str, Any]], bytes]) -> bytes:
            return b"".join(data(encode(chunk)) for chunk in make())

        if n_scored <= MANY_SCORED:
            return write(compact)
        return await asyncio.to_thread(write, written)

    async def _collect(self) -> None:
        async for _ in self._items():
            pass

    async def _items(self) -> AsyncIterator[Piece | Round | End]:
        """Pieces and ends of all samples, until the last end; counted on the way."""
        self.metrics.entered(prompt_tokens(self.group.asks))
        while len(self.ended) < len(self.group.asks):
            item = await self.group.items.get()
            if isinstance(item, Exception):
                raise of_failure(item)
            if isinstance(item, Piece) and item.token_ids:
                self._count(item)
            if self.keeping is not None:
                self.keeping.take(item)
            if isinstance(item, End):
                _refuse_failed(item.completion)
                self.ended[item.index] = item.completion
                first = self.first.get(item.index)
                self.metrics.ended(self.group.asks[item.index], item, self.note.began, first)
            if isinstance(item, Piece | Round | End):
                yield item
        self.note.end(prompt_tokens(self.group.asks), self._completions())

    def _count(self, piece: Piece) -> None:
        now = time.monotonic()
        before = self.last.get(piece.index)
        if before is None:
            self.first[piece.index] = now
            self.metrics.first_text(now - self.note.began)
        self.metrics.grew(len(piece.token_ids), None if before is None else now - before)
        self.last[piece.index] = now

    def _completions(self) -> list[Completion]:
        return [self.ended[index] for index in sorted(self.ended)]


def _n_scored(completion: Completion) -> int:
    return len(completion.logprobs or ()) + len(completion.prompt_logprobs or ())


def _refuse_failed(completion: Completion) -> None:
    """A sample that the engine gave up on: it failed alone."""
    error = completion.error
    if error is not None:
        is_asked = any(word in error for word in ASKED_FOR)
        raise ApiError(400 if is_asked else 500, f"this request failed, others go on: {error}")
