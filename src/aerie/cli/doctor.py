"""`aerie doctor`: versions, backends and every default with its reason."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import asdict
from typing import Annotated, Any

import typer

from aerie.cli.output import console, finish
from aerie.models.resolved import Resolved

# Library, and what is missing without it.
LIBRARIES = {
    "torch": "required",
    "numpy": "required",
    "safetensors": "required",
    "tokenizers": "required",
    "jinja2": "required",
    "typer": "required",
    "rich": "required",
    "triton": "GPU kernels: pip install 'aerie[gpu]'",
    "fastapi": "the server: pip install 'aerie[serve]'",
    "matplotlib": "plots: pip install 'aerie[report]'",
    "transformers": "the oracle of model tests: pip install 'aerie[hf]'",
    "llguidance": "grammars: pip install 'aerie[grammar]'",
}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")] = False,
) -> None:
    """Print versions, available backends (or why not) and the defaults with their reasons."""
    from aerie import __version__
    from aerie.kernels import catalogue

    versions = {"aerie": __version__, "python": platform.python_version(), **_versions()}
    backends = _backends()
    defaults = [_default_device(), *_engine_defaults(), _threads(), _hls_libraries()]
    required = [name for name, need in LIBRARIES.items() if need == "required"]
    missing = [name for name in required if not versions[name]]
    _print(versions, backends, defaults)
    problems = [f"{name} is not installed: pip install {name}" for name in missing]
    out = console()
    out.print(f"\nkernels: {len(catalogue())} operations, K1 to K13 and those of the round")
    for problem in problems:
        out.print(f"[red]problem[/] {problem}")
    if not problems:
        out.print("[green]ready[/]: try `aerie demo` and `aerie parity --backend pytorch`")
    finish(
        {
            "ok": not problems,
            "versions": versions,
            "backends": backends,
            "defaults": [asdict(entry) for entry in defaults],
            "problems": problems,
        },
        as_json,
    )


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _backends() -> dict[str, str]:
    from aerie.kernels.registry import BACKENDS, why_unavailable

    return {info.name: why_unavailable(info) or f"available: {info.summary}" for info in BACKENDS}


def _default_device() -> Resolved[str]:
    if importlib.util.find_spec("torch") is None:
        return Resolved("device", "cpu", "automatic", "torch is not installed")
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        return Resolved("device", "cuda", "automatic", f"torch sees {name}")
    return Resolved("device", "cpu", "automatic", "torch sees no CUDA device")


def _engine_defaults() -> list[Resolved[str]]:
    """What an engine takes where its configuration says auto."""
    if importlib.util.find_spec("torch") is None:
        return []
    from aerie.assemble import choose_backend, choose_engine, choose_policy, settled
    from aerie.assemble_numerics import choose_numerics
    from aerie.config import EngineConfig, ModelConfig

    config = EngineConfig(model=ModelConfig(device=_default_device().value))
    chosen = (choose_backend(config), choose_policy(config), choose_engine(settled(config)))
    return [*chosen, *choose_numerics(config.model)]


def _threads() -> Resolved[str]:
    cores = os.cpu_count() or 1
    if importlib.util.find_spec("torch") is None:
        return Resolved("threads", str(cores), "automatic", f"{cores} cores here")
    import torch

    reason = f"what torch took from its settings; {cores} cores here"
    return Resolved("threads", str(torch.get_num_threads()), "torch", reason)


def _hls_libraries() -> Resolved[str]:
    """Where the hls backend keeps what it compiled, and how much of it is there."""
    from aerie.kernels.hls.build import Sources, cache_folder, is_built
    from aerie.kernels.hls.signature import FAMILIES

    folder = cache_folder(os.environ)
    origin = "AERIE_CACHE" if os.environ.get("AERIE_CACHE") else "automatic"
    if shutil.which("g++") is None:
        return Resolved("hls libraries", str(folder), origin, "no g++ to compile them with")
    built = sum(is_built(Sources(family), folder) for family in FAMILIES)
    reason = f"{built} of {len(FAMILIES)} families compiled, the rest on first use"
    return Resolved("hls libraries", str(folder), origin, reason)


def _print(
    versions: dict[str, Any], backends: dict[str, str], defaults: list[Resolved[str]]
) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    table = Table("library", "version", box=None)
    for name, version in versions.items():
        table.add_row(name, version or escape(f"not installed ({LIBRARIES[name]})"))
    found = "found" if shutil.which("g++") else "not found (the hls backend needs it)"
    table.add_row("g++", found)
    out.print(table)
    table = Table("backend", "state", box=None)
    for name, state in backends.items():
        table.add_row(name, state)
    out.print(table)
    table = Table("default", "value", "origin", "reason", box=None)
    for entry in defaults:
        table.add_row(entry.name, entry.value, entry.origin, entry.reason)
    out.print(table)
