"""`aerie doctor`: versions, backends and every default with its reason."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import asdict
from typing import Any

from aerie.cli.checks import Json
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
    as_json: Json = False,
) -> None:
    """Print versions, available backends (or why not) and the defaults with their reasons."""
    from aerie import __version__
    from aerie.kernels import catalogue

    versions = {"aerie": __version__, "python": platform.python_version(), **_versions()}
    backends = _backends()
    defaults = [*_engine_defaults(), _hls_libraries()]
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


def _engine_defaults() -> list[Resolved[str]]:
    """What `Engine.load()` takes where nothing is said, from the functions that it calls itself."""
    if importlib.util.find_spec("torch") is None:
        return [Resolved("device", "cpu", "automatic", "torch is not installed")]
    from aerie.assemble.choices import explain
    from aerie.config import EngineConfig

    found = explain(EngineConfig())
    device = found[0].value
    return [*found, _threads(device), _gpu_kernels(device), _cost_tables()]


def _threads(device: str) -> Resolved[str]:
    """For the built-in pair, and beside it for a model whose products are worth sharing."""
    from aerie.assemble.device import SHARED_FROM, choose_threads

    small, large = (choose_threads(0, width, device) for width in (256, SHARED_FROM))
    reason = f"the built-in pair: {small.reason}; from {SHARED_FROM} wide on {large.value}"
    return Resolved("threads", str(small.value), small.origin, f"{reason} ({large.reason})")


def _gpu_kernels(device: str) -> Resolved[str]:
    """What is known of kernels on the GPU that is here, or on all they are compiled for."""
    import torch

    from aerie.chips import CHIPS, evidence, record_of

    if not device.startswith("cuda"):
        told = (f"{chip.architecture} {evidence(chip.capability)}" for chip in CHIPS.values())
        return Resolved("gpu kernels", "no GPU here", "automatic", "; ".join(told))
    own = record_of(torch.device(device))
    reason = (
        f"{evidence(own.capability)}; tiles for {own.processors} processors,"
        f" {own.shared_bytes:,} bytes of shared memory"
    )
    return Resolved("gpu kernels", own.architecture, "automatic", reason)


def _cost_tables() -> Resolved[str]:
    """Where measured tables are kept, and how many are."""
    from aerie.assemble.costs import costs_folder

    folder = costs_folder(os.environ)
    n_kept = len(list(folder.glob("*.json")))
    reason = f"{n_kept} kept; a pair without one is measured when it is first loaded"
    return Resolved("cost tables", str(folder), _cache_origin(), reason)


def _cache_origin() -> str:
    return "AERIE_CACHE" if os.environ.get("AERIE_CACHE") else "automatic"


def _hls_libraries() -> Resolved[str]:
    """Where the hls backend keeps what it compiled, and how much of it is there."""
    from aerie.kernels.hls.build import Sources, cache_folder, is_built
    from aerie.kernels.hls.signature import FAMILIES

    folder = cache_folder(os.environ)
    origin = _cache_origin()
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
