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
LOOK_SECONDS = 1.0  # between two looks at a line, which may be given up meanwhile


class ReloadRequest(Strict):
    """What to load; nothing said: the files that were named at the start, read again."""

    model: str | None = None
    draft: str | None = None


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
    worker = service.worker
    try:
        serving = worker.ready()
        found, numbers = await asyncio.to_thread(until_loaded, host)
        _require_same_text(serving, found)
        worker.ready()  # it may drain, or have failed, by now
    except BaseException:
        await asyncio.to_thread(host.end, 0)
        raise
    worker.adopt(host, found, numbers)
    return found


def until_loaded(host: Host) -> tuple[Facts, Numbers]:
    """Wait for an engine; raises ApiError with its own reason if it will never be ready.

    No request depends on it yet. Its line ends where it is given up meanwhile.
    """
    numbers, found = Numbers(), None
    try:
        while found is None:
            host.line.wait(LOOK_SECONDS)
            for message in host.line.receive():
                if isinstance(message, Failed):
                    raise _refused(message.reason)
                if isinstance(message, Batch):
                    numbers = message.numbers
                elif isinstance(message, Facts):
                    found = message
    except LineEnded:
        raise _refused(host.last_words()) from None
    return found, numbers


def _require_same_text(old: Facts, new: Facts) -> None:
    """Requests that are being read meanwhile would be served by an engine of other ids."""
    is_same = old.tokenizer.backend.to_str() == new.tokenizer.backend.to_str()
    if not is_same or old.template.sources != new.template.sources:
        raise _refused("its tokenizer or chat template is another one; start a server of its own")


def _refused(reason: str) -> ApiError:
    LOG.warning("the weights stay as they are: %s", reason)
    return ApiError(400, f"the weights stay as they are: {public_words(reason)}", "model")
