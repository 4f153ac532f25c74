"""The tools of the scripted conversation, for clients: what they are called with, what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SCRIPT = json.loads((Path(__file__).parent / "conversation.json").read_text(encoding="utf-8"))
QUESTION: str = _SCRIPT["question"]
TOOLS: list[dict[str, Any]] = _SCRIPT["tools"]
RESULTS: dict[str, str] = _SCRIPT["results"]
ARGUMENTS: dict[str, dict[str, Any]] = _SCRIPT["arguments"]
ANSWER: str = _SCRIPT["answer"]


def _function(name: str) -> Callable[..., str]:
    def call(**arguments: object) -> str:
        assert arguments == ARGUMENTS[name], arguments
        return RESULTS[name]

    return call


FUNCTIONS = {name: _function(name) for name in RESULTS}


def is_answer(text: str) -> bool:
    """Whether a text has every result."""
    return text == ANSWER
