"""`aerie serve`: the engine behind an OpenAI-compatible server."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli.generate import (
    Backend,
    Draft,
    DraftTopK,
    Method,
    Model,
    Nodes,
    Numerics,
    PolicyName,
    Steps,
    Threads,
    VllmConfig,
    chosen_speculation,
    set_threads,
)
from aerie.errors import UsageError

if TYPE_CHECKING:
    from aerie.server.samples import Loaded

Host = Annotated[str, typer.Option(help="Address to listen on; others than loopback need a key.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")]
Name = Annotated[
    str | None,
    typer.Option("--served-name", "--served-model-name", help="What clients call the model."),
]
Key = Annotated[
    str | None, typer.Option(envvar="AERIE_API_KEY", help="Clients must send it as a bearer token.")
]
Public = Annotated[bool, typer.Option("--public", help="Answer other machines without a key.")]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(help="Another name of this server; several may be given, * is any."),
]
Template = Annotated[
    Path | None, typer.Option("--chat-template", help="Jinja file instead of the model's own.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
EngineKind = Annotated[
    str, typer.Option("--engine", help="graphs or eager; auto: graphs on a GPU where they can be.")
]
MaxBatch = Annotated[int, typer.Option(min=1, max=128, help="Requests decoded together.")]
Pages = Annotated[int, typer.Option(min=2, help="KV pages of 16 positions.")]
Pending = Annotated[int, typer.Option(min=1, help="Tokens taken in before 429.")]
Seconds = Annotated[
    float, typer.Option(help="A client has so long to send a head, a body, or to read a chunk.")
]
Compat = Annotated[str | None, typer.Option(help="vllm: its metric names beside ours.")]
LogLevel = Annotated[
    str, typer.Option(help="debug, info (a line for each request), warning or error.")
]


def serve(
    model: Model = None,
    draft: Draft = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_name: Name = None,
    api_key: Key = None,
    is_public: Public = False,
    allowed_host: AllowedHost = None,
    chat_template: Template = None,
    method: Method = "eagle3",
    policy: PolicyName = "auto",
    num_steps: Steps = None,
    eagle_topk: DraftTopK = None,
    num_draft_tokens: Nodes = None,
    speculative_config: VllmConfig = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    backend: Backend = "auto",
    numerics: Numerics = "fast",
    engine: EngineKind = "auto",
    threads: Threads = 0,
    max_batch: MaxBatch = 32,
    n_pages: Pages = 2560,
    max_pending_tokens: Pending = 1 << 20,
    request_seconds: Seconds = 30.0,
    metrics_compat: Compat = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve a model over HTTP as OpenAI does; ends on Ctrl-C or SIGTERM after what runs."""
    _require_framework()
    from aerie.server.run import serve as run
    from aerie.server.settings import ServerSettings

    settings = ServerSettings(
        host=host,
        port=port,
        name=served_name or (Path(model).name if model else "aerie-pair"),
        api_key=api_key,
        is_public=is_public,
        allowed_hosts=tuple(allowed_host or ()),
        max_pending_tokens=max_pending_tokens,
        request_seconds=request_seconds,
        metrics_compat=metrics_compat,
        log_level=log_level,
    )
    shape = (eagle_topk, num_steps, num_draft_tokens)
    speculation, named = chosen_speculation(speculative_config, method, policy, shape)
    options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "numerics": numerics,
        "backend": backend,
        "engine": engine,
        "cache": {"n_pages": n_pages},
        "scheduler": {"max_batch": max_batch},
        "speculation": asdict(speculation),
    }
    set_threads(threads, model)
    run(lambda: _load(model, draft or named, options, chat_template), settings, _say)


def _say(words: str) -> None:
    """As it is: an address must not be wrapped, nor its brackets be taken for a colour."""
    print(words, file=sys.stderr, flush=True)


def _require_framework() -> None:
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"the server needs {name}, which is not installed: pip install 'aerie[serve]',"
                " in a checkout pip install '.[serve]'"
            )


def _load(
    model: str | None, draft: str | None, options: dict[str, Any], template: Path | None
) -> Loaded:
    from aerie.api import Engine, find_pair
    from aerie.server.samples import Loaded
    from aerie.text.chat import compile_chat_template, load_chat_template

    engine = Engine.load(model, draft, **options)
    own = load_chat_template(find_pair(model, draft)[0])
    if template is not None:
        source = template.read_text(encoding="utf-8")
        own = compile_chat_template({"default": source}, own.tokens, template.name)
    return Loaded(engine, own)
