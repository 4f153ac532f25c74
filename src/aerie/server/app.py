"""The paths of the server, each in a line or two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp

import aerie
from aerie.server import problems
from aerie.server.about import add_about
from aerie.server.aliases import add_aliases
from aerie.server.fields import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ProblemBody,
    TokenizeRequest,
)
from aerie.server.guard import Guard
from aerie.server.metrics import Metrics
from aerie.server.service import Service
from aerie.server.settings import ServerSettings
from aerie.server.sglang import GenerateRequest, server_info
from aerie.server.view import add_view
from aerie.server.worker import State, Worker

PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ProblemBody, "description": "The request cannot be honoured."},
    "5XX": {"model": ProblemBody, "description": "Loading, draining, or failed."},
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(worker: Worker, settings: ServerSettings) -> ASGIApp:
    """The whole application behind its guard."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        worker.stop()

    # The framework's pages of documentation load scripts from elsewhere.
    app = FastAPI(
        title="aerie",
        version=aerie.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    service = Service(worker, settings, Metrics(settings.metrics_compat))
    problems.install(app, service.metrics.refused)
    _add_generation(app, service)
    _add_sglang(app, service)
    _add_state(app, service)
    _add_text(app, service)
    add_aliases(app, service)
    add_about(app, service)
    add_view(app)
    return Guard(app, settings)


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
        engine = service.worker.ready().engine
        return server_info(service.settings.name, engine, service.metrics.registry)


def _add_state(app: FastAPI, service: Service) -> None:
    worker, name = service.worker, service.settings.name

    @app.head("/health", include_in_schema=False)
    @app.get("/health_generate", include_in_schema=False)
    @app.get("/ping", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        """200 when requests are taken in, else 503 and why."""
        is_ready = worker.state is State.READY
        return JSONResponse({"status": worker.state.value}, 200 if is_ready else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """Of aerie."""
        return {"version": aerie.__version__}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one that is served."""
        limit = worker.ready().engine.core.limits.context
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "aerie"}
        return {"object": "list", "data": [{**entry, "max_model_len": limit}]}

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        core = worker.ready().engine.core
        ledger = core.parts.memory.ledger
        usage = 1 - (ledger.n_free + ledger.n_idle) / (ledger.n_pages - 1)
        # A slot is gone with the next step only; who has finished runs no more.
        n_running = sum(request.ended is None for request in list(core.running))
        page = service.metrics.page(n_running, round(max(usage, 0.0), 4))
        return Response(page, media_type=METRICS_TYPE)


def _add_text(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(asked: TokenizeRequest) -> dict[str, Any]:
        """Ids of a text."""
        return await service.tokenize(asked)

    @app.post("/detokenize")
    async def detokenize(asked: DetokenizeRequest) -> dict[str, Any]:
        """Text of ids."""
        return await service.detokenize(asked)
