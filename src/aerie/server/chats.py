"""Tools between a chat's request and its answer: offered to a template, read out of a text."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from aerie.server.fields import ChatRequest
from aerie.server.problems import ApiError
from aerie.server.samples import Ask, Facts
from aerie.server.speech import Speech
from aerie.text.output import TextOutput

HAS_GRAMMARS = importlib.util.find_spec("aerie.text.grammar") is not None


def offered_tools(facts: Facts, asked: ChatRequest) -> list[dict[str, Any]] | None:
    """What a template is told of the tools, as they were sent; None: there are none."""
    if not asked.offered:
        return None
    if not facts.template.takes_tools:
        message = "the model's chat template writes no tools: serve it with a --chat-template FILE"
        raise ApiError(400, f"{message} that does, or leave them out", "tools")
    if asked.tool_choice not in (None, "auto") and not HAS_GRAMMARS:
        message = "tool_choice: this server cannot force a call; send auto or none"
        raise ApiError(400, message, "tool_choice")
    unsaid = {"function": {"strict"}}
    return [tool.model_dump(exclude_unset=True, exclude=unsaid) for tool in asked.offered.values()]


def speeches(facts: Facts, asked: ChatRequest, asks: Sequence[Ask]) -> tuple[Speech, ...]:
    """A parser for each choice, where tools may be called or texts have marks of their own."""
    dialect, names = facts.dialect, frozenset(asked.offered)
    if not names and not dialect.is_always_read:
        return ()
    tokenizer = facts.tokenizer.showing(dialect.marks)
    most_calls = None if asked.parallel_tool_calls else 1
    return tuple(
        Speech(TextOutput(tokenizer, ask.params.stop), dialect.parser(names), most_calls)
        for ask in asks
    )
