"""Tools between a chat's request and its answer: offered to a template, read out of a text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from aerie.errors import UsageError
from aerie.server.fields import ChatRequest
from aerie.server.problems import ApiError
from aerie.server.renderer import Renderer
from aerie.server.samples import Ask, Facts
from aerie.server.speech import Speech
from aerie.text.grammar import JsonSchema
from aerie.text.harmony import Setting, render_harmony
from aerie.text.marks import Marks
from aerie.text.tool_schema import ForcedCalls, tool_schema


def offered_tools(facts: Facts, asked: ChatRequest) -> list[dict[str, Any]] | None:
    """What a template is told of the tools, as they were sent; None: there are none."""
    if not asked.offered:
        return None
    if not facts.template.takes_tools and not facts.writes_harmony:
        message = "the model's chat template writes no tools: serve it with a --chat-template FILE"
        raise ApiError(400, f"{message} that does, or leave them out", "tools")
    unsaid = {"function": {"strict"}}
    return [tool.model_dump(exclude_unset=True, exclude=unsaid) for tool in asked.offered.values()]


async def prompt_text(
    renderer: Renderer, facts: Facts, asked: ChatRequest, tools: list[dict[str, Any]] | None
) -> str:
    """The prompt of a chat: in Harmony, or as the model's template writes it."""
    if facts.writes_harmony:
        setting = Setting(date.today().isoformat(), asked.effort or "medium")
        try:
            return await asyncio.to_thread(render_harmony, asked.messages, tools, setting)
        except UsageError as error:
            raise ApiError(400, str(error), "messages") from error
    if asked.effort is not None and not facts.template.takes_effort:
        message = "reasoning_effort: the model's chat template writes none: leave it out"
        raise ApiError(400, message, "reasoning_effort")
    return await renderer.render(facts.template, asked.messages, tools, asked.effort)


def held_to_calls(asked: ChatRequest, asks: tuple[Ask, ...]) -> tuple[Ask, ...]:
    """The same, held to a call by a grammar where one must be made."""
    if asked.offered and asks[0].params.grammar is not None:
        message = "response_format: a text that must be of one form cannot call tools: leave one"
        raise ApiError(400, f"{message} of them out, or send tool_choice none", "response_format")
    if not asked.forced:
        return asks
    schemas = {name: tool.function.parameters for name, tool in asked.forced.items()}
    is_parallel = asked.parallel_tool_calls and asked.tool_choice == "required"
    try:
        grammar = JsonSchema(tool_schema(schemas, is_parallel))
    except UsageError as error:
        raise ApiError(400, f"tools: {error}", "tools") from error
    return tuple(replace(ask, params=replace(ask.params, grammar=grammar)) for ask in asks)


def speeches(facts: Facts, asked: ChatRequest, asks: Sequence[Ask]) -> tuple[Speech, ...]:
    """A parser for each choice, where tools may be called or texts have marks of their own."""
    dialect, names = facts.dialect, frozenset(asked.offered)
    is_marked = dialect.is_always_read and asks[0].params.grammar is None
    if not names and not is_marked:
        return ()
    most_calls = None if asked.parallel_tool_calls else 1
    return tuple(
        Speech(
            Marks(facts.tokenizer, dialect.marks),
            ForcedCalls() if asked.forced else dialect.parser(names),
            most_calls,
        )
        for _ in asks
    )
