"""New weights while a server serves: another engine loads beside it, and takes over once it can."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import FastAPI

from aerie.server.fields import Strict
from aerie.server.host import Host
from aerie.server.line import LineEnded
from aerie.server.logs import facts as told
from aerie.server.problems import ApiError, public_words
from aerie.server.samples import Batch, Facts, Failed, Numbers
from aerie.server.service import Service

LOG = logging.getLogger("aerie.server")


class ReloadRequest(Strict):
    """What to load; nothing said: the files that were named at the start, read again."""

    model: str | None = None
    draft: str | None = None


class Candidate:
    """An engine that loads; no request depends on it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.numbers = Numbers()
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[Facts] = self._loop.create_future()

    async def load(self) -> Facts:
        """Wait until it is ready; raises ApiError with its own reason if it never will be."""
        number = self.host.line.fileno()
        self._loop.add_reader(number, self._hear)
        try:
            return await self._loaded
        except LineEnded:
            reason = await asyncio.to_thread(self.host.last_words)
            raise _refused(reason) from None
        finally:
            self._loop.remove_reader(number)

    def _hear(self) -> None:
        try:
            for message in self.host.line.receive():
                self._heed(message)
        except LineEnded as ended:
            self._settle(ended)

    def _heed(self, message: object) -> None:
        if isinstance(message, Batch):
            self.numbers = message.numbers
        elif isinstance(message, Facts) and not self._loaded.done():
            self._loaded.set_result(message)
        elif isinstance(message, Failed):
            self._settle(_refused(message.reason))

    def _settle(self, failure: Exception) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(failure)


def add_reload(app: FastAPI, service: Service) -> None:
    """POST /admin/reload."""
    turn = asyncio.Lock()

    @app.post("/admin/reload")
    async def reload(asked: ReloadRequest) -> dict[str, Any]:
        """Serve other weights; what runs finishes on those it began with."""
        if service.settings.api_key is None:
            raise ApiError(403, "weights are reloaded where a key guards it: start with --api-key")
        if service.another is None:
            raise ApiError(403, "one of several replicas: start them anew with the new weights")
        if turn.locked():
            raise ApiError(409, "weights are being reloaded: wait for that answer")
        async with turn:
            found = await _reload(service, service.another(asked.model, asked.draft))
        seconds = sum(found.load_seconds.values())
        own = told(model=asked.model, draft=asked.draft, seconds=seconds)
        LOG.info("other weights are served, loaded in %.1f s", seconds, extra=own)
        return {"status": "reloaded", "load_seconds": dict(found.load_seconds)}


async def _reload(service: Service, host: Host) -> Facts:
    """Load, compare, take over; whatever is wrong, the old engine serves on."""
    candidate, worker = Candidate(host), service.worker
    try:
        serving = worker.ready()
        found = await candidate.load()
        _require_same_text(serving, found)
        worker.ready()  # it may drain, or have failed, by now
    except BaseException:
        await asyncio.to_thread(host.end, 0)
        raise
    worker.adopt(host, found, candidate.numbers)
    return found


def _require_same_text(old: Facts, new: Facts) -> None:
    """Requests that are being read meanwhile would be served by an engine of other ids."""
    is_same = old.tokenizer.backend.to_str() == new.tokenizer.backend.to_str()
    if not is_same or old.template.sources != new.template.sources:
        raise _refused("its tokenizer or chat template is another one; start a server of its own")


def _refused(reason: str) -> ApiError:
    LOG.warning("the weights stay as they are: %s", reason)
    return ApiError(400, f"the weights stay as they are: {public_words(reason)}", "model")
