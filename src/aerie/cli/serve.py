"""`aerie serve`: the engine behind an OpenAI-compatible server."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aerie.cli.checks import amount, count, out_file
from aerie.cli.engine_options import EngineOptions, takes_engine_options
from aerie.cli.output import read_text
from aerie.errors import UsageError

if TYPE_CHECKING:
    from aerie.server.engine_loop import Loaded
    from aerie.server.host import Another
    from aerie.server.settings import ServerSettings

Named = Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")]
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
ToolParser = Annotated[
    str,
    typer.Option(
        help="How calls of tools are written: hermes, llama3_json, harmony, json;"
        " auto: as the chat template shows; raw: nothing is read, Harmony neither."
    ),
]
Pending = Annotated[int, count(1, "Tokens taken in before 429.")]
Seconds = Annotated[
    float, amount(0.0, "A client has so long to send a head, a body, or to read a chunk.")
]
Compat = Annotated[str | None, typer.Option(help="vllm: its metric names beside ours.")]
LogLevel = Annotated[
    str, typer.Option(help="debug, info (a line for each request), warning or error.")
]
LogFormat = Annotated[str, typer.Option(help="text, or json: a line is an object.")]

SaveRounds = Annotated[
    Path | None,
    out_file(help="Append every request's prompt, text and rounds, as JSON lines; 64 MiB at most."),
]

Replicas = Annotated[
    int, typer.Option(min=1, max=1024, help="Servers on Ray Serve, behind one address.")
]


@takes_engine_options
def serve(
    options: EngineOptions,
    named: Named = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_name: Name = None,
    api_key: Key = None,
    is_public: Public = False,
    allowed_host: AllowedHost = None,
    chat_template: Template = None,
    tool_parser: ToolParser = "auto",
    max_pending_tokens: Pending = 1 << 20,
    request_seconds: Seconds = 30.0,
    metrics_compat: Compat = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    save_rounds: SaveRounds = None,
    replicas: Replicas = 1,
) -> None:
    """Serve a model over HTTP as OpenAI does; ends on Ctrl-C or SIGTERM after what runs."""
    for name in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        _require(name, "serve")
    from aerie.server.host import ProcessHost
    from aerie.server.settings import ServerSettings, Telling
    from aerie.text.dialects import find_dialect

    options = _with_model(options, named)
    model = options.model.model
    settings = ServerSettings(
        host=host,
        port=port,
        name=served_name or (Path(model).name if model else "aerie-pair"),
        api_key=api_key,
        is_public=is_public,
        allowed_hosts=tuple(allowed_host or ()),
        max_pending_tokens=max_pending_tokens,
        request_seconds=request_seconds,
        telling=Telling(metrics_compat, log_level, log_format, save_rounds),
    )
    options.check()
    find_dialect(tool_parser, {})
    own = None if chat_template is None else read_text(chat_template)

    def another(model: str | None, draft: str | None) -> ProcessHost:
        """An engine of the same options with other weights; it begins to load."""
        old = options.model
        own_model = replace(old, model=model or old.model, draft=draft or old.draft)
        changed = replace(options, model=own_model)
        return ProcessHost(changed.config, Loading(changed, own, tool_parser), settings.telling)

    if replicas > 1:
        _serve_replicas(replicas, options, another, settings)
        return
    engine = another(None, None)
    try:
        from aerie.server.run import serve as run  # it takes a while, and the engine loads

        run(engine, settings, _say, another)
    finally:
        engine.end(0)  # whatever was raised, no engine stays behind


def _serve_replicas(
    n_replicas: int, options: EngineOptions, another: Another, settings: ServerSettings
) -> None:
    if options.model.tensor_parallel > 1:
        raise UsageError(
            f"--replicas {n_replicas} with --tensor-parallel {options.model.tensor_parallel} has "
            "not been tried: Ray would have to give a replica several GPUs; leave one of them out"
        )
    if settings.port == 0:
        raise UsageError("replicas need a --port: Ray's proxy does not say which it has taken")
    _require("ray", "ray")
    from aerie.server.replicas import serve_replicas

    serve_replicas(n_replicas, another, settings, _say)


def _say(words: str) -> None:
    """As it is: an address must not be wrapped, nor its brackets be taken for a colour."""
    print(words, file=sys.stderr, flush=True)


def _with_model(options: EngineOptions, named: str | None) -> EngineOptions:
    """The model as an argument (`aerie serve MODEL`) or by --model; not two of them."""
    if named is None:
        return options
    if options.model.model not in (None, named):
        raise UsageError(f"two models are named, {named} and {options.model.model}: give one")
    return replace(options, model=replace(options.model, model=named))


def _require(name: str, extra: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise UsageError(
            f"the server needs {name}, which is not installed: pip install 'aerie[{extra}]',"
            f" in a checkout pip install '.[{extra}]'"
        )


@dataclass(frozen=True)
class Loading:
    """What the engine's process is to load; that process calls it."""

    options: EngineOptions
    template: str | None  # instead of the model's own
    tool_parser: str

    def __call__(self) -> Loaded:
        """The engine and its chat template."""
        from aerie.models.hub import find_pair
        from aerie.server.engine_loop import Loaded
        from aerie.text.chat import compile_chat_template, load_chat_template

        engine = self.options.load()
        own = load_chat_template(find_pair(self.options.model.model, self.options.head)[0])
        if self.template is not None:
            own = compile_chat_template({"default": self.template}, own.tokens, "--chat-template")
        return Loaded(engine, own, self.tool_parser, self.template is not None)
