"""Runs the server: listens, loads, says where it is, drains when it is told to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from aerie.errors import AerieError, UsageError
from aerie.server.app import build_app
from aerie.server.protocol import patient
from aerie.server.settings import ServerSettings
from aerie.server.worker import Loaded, State, Worker

KEEP_ALIVE_SECONDS = 15
LOOK_SECONDS = 0.05
BACKLOG = 512


class _Draining(uvicorn.Server):
    """A signal ends admission first; requests that run have `drain_seconds`."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self.worker = worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.worker.drain()
        super().handle_exit(sig, frame)


def serve(load: Callable[[], Loaded], settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Serve until a signal; raises if there was never anything to serve."""
    worker = Worker(load, settings.max_pending_tokens)
    listener = _listen(settings)
    config = uvicorn.Config(
        build_app(worker, settings),
        log_level="warning",
        access_log=False,
        http=patient(settings.request_seconds),
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    server = _Draining(config, worker)
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host

    async def watch() -> None:
        """Say when it is ready; end when loading failed, for nothing will ever be served."""
        while worker.state is State.LOADING:
            await asyncio.sleep(LOOK_SECONDS)
        if worker.state is State.READY:
            say(f"{settings.name} is served at http://{host}:{port}/v1")
        elif worker.state is State.FAILED:
            server.should_exit = True

    async def both() -> None:
        watching = asyncio.create_task(watch())
        await server.serve([listener])
        watching.cancel()

    say(f"loading {settings.name}; http://{host}:{port}/health says when it is ready")
    asyncio.run(both())
    if worker.failure:
        raise AerieError(worker.failure)


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
