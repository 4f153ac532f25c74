"""Runs the server: listens, loads, says where it is, drains when it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from types import FrameType

import uvicorn

from aerie.errors import AerieError, UsageError
from aerie.server.app import build_app, build_service
from aerie.server.describe import describe_engine, describe_load, describe_readiness
from aerie.server.host import Another, Host
from aerie.server.logs import facts, logging_to_stderr
from aerie.server.metrics import Totals
from aerie.server.protocol import patient
from aerie.server.samples import State
from aerie.server.service import Service
from aerie.server.settings import ServerSettings
from aerie.server.worker import Worker

LOG = logging.getLogger("aerie.server")
KEEP_ALIVE_SECONDS = 15
LOOK_SECONDS = 0.05
LOADING_SECONDS = 10.0  # between two lines that say it still loads
TELL_SECONDS = 10.0  # between two lines that say how it goes
FAILED_SECONDS = 5.0  # that a failed server still says why it ends
CLOSE_SECONDS = 5  # for answers that are written, at the very end
BACKLOG = 512


class _Server(uvicorn.Server):
    """Listens until nothing runs any more: a signal ends admission, a second one everything."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self.worker = worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.worker.state is not State.READY:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        self.worker.drain()


class _Watch:
    """What happens beside the requests: a line when it is ready, lines on how it goes, the end."""

    def __init__(self, server: _Server, service: Service, say: Callable[[str], None]) -> None:
        self.server = server
        self.service = service
        self.say = say

    async def run(self, address: str) -> None:
        """From loading to the end."""
        worker, settings = self.service.worker, self.service.settings
        await self._until_loaded(f"loading {settings.name}; {address}/health says when it is ready")
        if worker.state is State.READY:
            assert worker.loaded is not None
            self.say(describe_engine(settings.name, worker.loaded))
            self.say(describe_readiness(worker.loaded.load_seconds, worker.numbers.n_graphs))
            self.say(f"{settings.name} is served at {address}/v1; live page: {address}/")
            await self._until_over()
        if worker.state is State.DRAINING:
            await self._drain()
        elif worker.loaded is not None:
            LOG.error("the server ends in %.0f s: its engine failed", FAILED_SECONDS)
            await asyncio.sleep(FAILED_SECONDS)
        self.server.should_exit = True

    async def _until_loaded(self, first: str) -> None:
        worker, began = self.service.worker, time.monotonic()
        while worker.state is State.LOADING and not worker.has_begun:
            await asyncio.sleep(LOOK_SECONDS)
        if worker.has_begun:  # else what is wrong is all there is to say
            self.say(first)
        told = began
        while worker.state is State.LOADING:
            await asyncio.sleep(LOOK_SECONDS)
            # A terminal shows a bar while weights are read and costs are measured.
            if time.monotonic() - told >= LOADING_SECONDS and not sys.stderr.isatty():
                told = time.monotonic()
                self.say(f"still loading, {told - began:.0f} s")

    async def _until_over(self) -> None:
        worker, told = self.service.worker, time.monotonic()
        before = replace(self.service.metrics.totals)
        while worker.state is State.READY:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if now - told >= TELL_SECONDS and worker.state is State.READY:
                after = replace(self.service.metrics.totals)
                self._tell(after.since(before), now - told)
                before, told = after, now

    def _tell(self, added: Totals, seconds: float) -> None:
        why = self.service.worker.numbers.reason
        standing = self.service.standing()
        words = describe_load(added, standing, seconds, why)
        if words is not None:
            LOG.info("%s", words, extra=facts(seconds=seconds, **asdict(added), **asdict(standing)))

    async def _drain(self) -> None:
        worker, seconds = self.service.worker, self.service.settings.drain_seconds
        until = time.monotonic() + seconds
        LOG.info("draining: no request is taken in, what runs has %d s", seconds)
        while not worker.is_quiet and not self.server.should_exit:
            if time.monotonic() >= until:
                LOG.warning("draining took %d s: what still runs is ended", seconds)
                worker.give_up()
            await asyncio.sleep(LOOK_SECONDS)


def serve(
    engine: Host,
    settings: ServerSettings,
    say: Callable[[str], None],
    another: Another | None = None,
) -> None:
    """Serve until a signal; raises if there is nothing to serve, or no more."""
    service = build_service(Worker(engine, settings.max_pending_tokens), settings, another)
    listener = _listen(settings)
    config = uvicorn.Config(
        build_app(service),
        log_config=None,
        access_log=False,
        http=patient(settings.request_seconds),
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    server = _Server(config, service.worker)
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{port}"
    telling = settings.telling
    # Where lines are read by program, these are lines as others are.
    tell = LOG.info if telling.log_format == "json" else _heedless(say)

    async def both() -> None:
        watching = asyncio.create_task(_Watch(server, service, tell).run(address))
        await server.serve([listener])
        watching.cancel()

    with logging_to_stderr(telling.log_level, telling.log_format):
        asyncio.run(both())
    if service.worker.failure:
        raise AerieError(service.worker.failure)


def _heedless(say: Callable[[str], None]) -> Callable[[str], None]:
    """A full disk or a closed terminal is no reason not to serve."""

    def tell(words: str) -> None:
        with contextlib.suppress(OSError):
            say(words)

    return tell


def _listen(settings: ServerSettings) -> socket.socket:
    """Bound before anything is loaded: a taken port is said at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror};"
            " choose another --port (0: any free one)"
        ) from error
