"""Where the public names of the package live; `aerie/__init__.py` looks them up here."""

from __future__ import annotations

import importlib

HOMES = {
    "Engine": "aerie.api",
    "EngineConfig": "aerie.config",
    "Grammar": "aerie.text.grammar",
    "JsonSchema": "aerie.text.grammar",
    "Regex": "aerie.text.grammar",
    "SamplingParams": "aerie.requests.params",
}


def find(name: str) -> object:
    """The public object of that name; AttributeError for any other, as a module would."""
    if name not in HOMES:
        raise AttributeError(f"module 'aerie' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
