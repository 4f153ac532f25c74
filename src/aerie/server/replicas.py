"""Replicas: the same application several times on Ray Serve, whose own router chooses one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

import ray
from ray import serve
from starlette.types import ASGIApp

from aerie.server.app import build_app, build_service
from aerie.server.host import Another
from aerie.server.logs import logging_to_stderr
from aerie.server.samples import State
from aerie.server.settings import ServerSettings
from aerie.server.worker import Worker

PROXY = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "aerie.server.farewell:middlewares"}
# What is too much for a replica, it refuses itself.
WATCHED = {"health_check_period_s": 1, "max_ongoing_requests": 1024}
ENDS = {signal.SIGINT, signal.SIGTERM}


@serve.ingress()
class Replica:
    """One server without its listener."""

    def __init__(self, start: Another, settings: ServerSettings) -> None:
        told, self._kept = settings.telling, contextlib.ExitStack()
        self._kept.enter_context(logging_to_stderr(told.log_level, told.log_format))
        worker = Worker(start(None, None), settings.max_pending_tokens)
        self.service = build_service(worker, settings)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        return build_app(self.service)

    async def check_health(self) -> None:
        """Ray asks when a replica starts, which waits for the engine, and every second."""
        while (worker := self.service.worker).state is State.LOADING:
            await asyncio.sleep(0.05)
        if worker.failure:
            raise RuntimeError(worker.failure)  # Ray replaces it


def serve_replicas(n: int, start: Another, at: ServerSettings, say: Callable[[str], None]) -> None:
    """Serve until a signal, in the Ray cluster this machine is part of, or one of its own."""
    ray.init(include_dashboard=False, configure_logging=False, runtime_env={"env_vars": PROXY})
    serve.start(http_options={"host": at.host, "port": at.port})
    devices = {"num_cpus": 1, "num_gpus": 1 if ray.cluster_resources().get("GPU") else 0}
    options = {"ray_actor_options": devices, "graceful_shutdown_timeout_s": at.drain_seconds}
    deployment = serve.deployment(Replica, num_replicas=n, **WATCHED, **options)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    serve.run(deployment.bind(start, at), name="aerie", route_prefix="/")
    say(f"{at.name} is served at http://{at.host}:{at.port}/v1 by {n} replicas")
    signal.sigwait(ENDS)
    serve.shutdown()
    ray.shutdown()
