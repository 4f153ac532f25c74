"""The paths of the server, each in a line or two."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp

import aerie
from aerie.server import problems
from aerie.server.about import add_about, add_aliases
from aerie.server.bodies import BoundedRoute
from aerie.server.fields import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ProblemBody,
    TokenizeRequest,
)
from aerie.server.guard import Guard
from aerie.server.host import Another
from aerie.server.keeping import Keeper
from aerie.server.metrics import Metrics
from aerie.server.reading import Reader
from aerie.server.reloading import add_reload
from aerie.server.renderer import Renderer
from aerie.server.samples import State
from aerie.server.service import Service
from aerie.server.settings import ServerSettings
from aerie.server.sglang import GenerateRequest, server_info
from aerie.server.view import add_view
from aerie.server.worker import Worker

PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ProblemBody, "description": "The request cannot be honoured."},
    "5XX": {"model": ProblemBody, "description": "Loading, draining, or failed."},
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_service(
    worker: Worker, settings: ServerSettings, another: Another | None = None
) -> Service:
    """The parts of one server; with `another` its weights can be replaced while it serves."""
    metrics = Metrics(settings.name, settings.telling.metrics_compat)
    path = settings.telling.save_rounds
    keeper = None if path is None else Keeper(path, settings.name)
    renderer = Renderer(settings.request_seconds)
    return Service(worker, settings, metrics, Reader(), renderer, keeper, another)


def build_app(service: Service) -> ASGIApp:
    """The whole application behind its guard."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await service.renderer.close()
        service.worker.stop()
        if service.keeper is not None:
            service.keeper.end()

    # The framework's pages of documentation load scripts from elsewhere.
    app = FastAPI(
        title="aerie",
        version=aerie.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    app.router.route_class = BoundedRoute
    problems.install(app)
    _add_generation(app, service)
    _add_sglang(app, service)
    _add_models(app, service)
    _add_state(app, service)
    _add_text(app, service)
    add_aliases(app, service)
    add_about(app, service)
    add_reload(app, service)
    add_view(app)
    return Guard(app, service.settings, service.metrics.refused)


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        """Complete a prompt."""
        return await service.complete(asked, request)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(asked: ChatRequest, request: Request) -> Response:
        """Answer a conversation, by the model's own template."""
        return await service.chat(asked, request)


def _add_sglang(app: FastAPI, service: Service) -> None:
    @app.post("/generate", response_model=None)
    async def generate(asked: GenerateRequest, request: Request) -> Response:
        """A completion in SGLang's form."""
        return await service.generate(asked, request)

    @app.get("/server_info")
    async def info() -> dict[str, Any]:
        """Its configuration, in SGLang's words."""
        facts = service.worker.ready()
        return server_info(service.settings.name, facts, service.metrics.registry)


def _add_models(app: FastAPI, service: Service) -> None:
    created = int(time.time())

    def entry() -> dict[str, Any]:
        limit = service.worker.ready().limits.context
        named = {"id": service.settings.name, "object": "model", "created": created}
        return {**named, "owned_by": "aerie", "max_model_len": limit}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one that is served."""
        return {"object": "list", "data": [entry()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The one that is served, asked for by its name."""
        service.named(name)
        return entry()


def _add_state(app: FastAPI, service: Service) -> None:
    worker = service.worker

    @app.head("/health", include_in_schema=False)
    @app.get("/health_generate", include_in_schema=False)
    @app.get("/ping", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        """200 when requests are taken in, else 503 and why."""
        told = {"status": worker.state.value}
        if worker.failure:
            told["reason"] = problems.public_words(worker.failure)
        if service.renderer.trouble is not None:
            told["chats"] = service.renderer.trouble
        if worker.state is State.READY:
            return JSONResponse(told)
        retry = {} if worker.failure else problems.RETRY_LATER
        return JSONResponse(told, 503, retry)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """Of aerie."""
        return {"version": aerie.__version__}

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        standing = service.standing()
        service.metrics.loaded(service.worker.ready())
        return Response(service.metrics.page(standing), media_type=METRICS_TYPE)


def _add_text(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(asked: TokenizeRequest, request: Request) -> dict[str, Any]:
        """Ids of a text."""
        return await service.tokenize(asked, request)

    @app.post("/detokenize")
    async def detokenize(asked: DetokenizeRequest) -> dict[str, Any]:
        """Text of ids."""
        return await service.detokenize(asked)
