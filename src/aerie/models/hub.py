"""Hub ids: finds `organisation/name` in the local Hugging Face cache, and never downloads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from aerie.errors import HubError
from aerie.models.foreign import explain_directory, explain_file
from aerie.models.strict_json import reading

# The cache belongs to another tool, so its variables keep that tool's names: (name, the folder
# below it that holds the models). The first one that is set wins, as in that tool.
CACHE_VARIABLES = (("HF_HUB_CACHE", "."), ("HF_HOME", "hub"))
DEFAULT_CACHE = "~/.cache/huggingface/hub"

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[A-Za-z0-9][\w.-]*")


def find_pair(model: str | None, draft: str | None) -> tuple[Path, Path | None]:
    """Directories of target and head; the built-in pair when no model is named."""
    if model is None:
        built_in = Path(str(resources.files("aerie"))) / "assets" / "pair"
        head = built_in / "head" if draft is None else find_model(draft, os.environ)
        return built_in / "target", head
    return find_model(model, os.environ), find_model(draft, os.environ) if draft else None


def find_model(model: str, environment: Mapping[str, str]) -> Path:
    """The directory of a model: a path that exists, or a hub id found in the local cache."""
    path = _local(model)
    if model and path.is_dir():
        return path
    if path.is_file():
        told = explain_file(path) or "give the directory that holds it, with its config.json"
        raise HubError(f"{path} is a file, not a model directory; {told}")
    if not HUB_ID.fullmatch(model):
        raise HubError(f"{model!r} is neither a directory nor a hub id like organisation/name")
    cache = cache_folder(environment)
    with reading(cache, HubError):
        return _snapshot(cache, model)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the local cache lies."""
    for name, below in CACHE_VARIABLES:
        if environment.get(name):
            return Path(environment[name]).expanduser() / below
    return Path(DEFAULT_CACHE).expanduser()


def _local(model: str) -> Path:
    """The path a model's name would be on this machine; what cannot be one is an error."""
    try:
        path = Path(model).expanduser()
        path.is_dir()
    # An unknown user, a name too long, a folder that may not be entered.
    except (RuntimeError, OSError) as error:
        raise HubError(f"{model!r:.200} cannot be looked up: {error}") from error
    return path


def _snapshot(cache: Path, model: str) -> Path:
    """The files of a model's main branch."""
    folder = cache / f"models--{model.replace('/', '--')}"
    reference = folder / "refs" / "main"
    commit = reference.read_bytes().decode(errors="replace").strip() if reference.is_file() else ""
    snapshot = folder / "snapshots" / commit
    command = f"hf download {model}"
    if not COMMIT.fullmatch(commit) or not snapshot.is_dir():
        raise HubError(f"{model} (main) is not in {cache}. Download it with:\n  {command}")
    if not (snapshot / "config.json").is_file():
        told = explain_directory(snapshot) or f"complete it with:\n  {command}"
        raise HubError(f"{model} in {snapshot} has no config.json; {told}")
    return snapshot
