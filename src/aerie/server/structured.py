"""Structured output as clients ask for it: OpenAI's `response_format`, and vLLM's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aerie.errors import UsageError
from aerie.server.problems import ApiError
from aerie.text.grammar import Constraint, Grammar, JsonSchema, Regex

ANY_OBJECT: dict[str, Any] = {"type": "object"}
# vLLM's `guided_…` fields, and the members of `structured_outputs` that took their place.
KINDS: Mapping[str, Callable[[Any], Constraint]] = {
    "json": JsonSchema,
    "regex": Regex,
    "grammar": Grammar,
    "choice": Grammar.of_choices,
}


def find_grammar(said: Mapping[str, Any]) -> Constraint | None:
    """The one grammar that fields of these names ask for; several, or none that is one, raise."""
    found = [
        (name, one)
        for name, value in said.items()
        if value is not None and (one := _read(name, value)) is not None
    ]
    if len(found) > 1:
        (first, _), (second, _) = found[:2]
        raise ApiError(400, f"{first} and {second} both ask for a grammar: give one", second)
    return found[0][1] if found else None


def _read(name: str, value: Any) -> Constraint | None:
    try:
        if name == "response_format":
            return _of_format(value)
        if name == "structured_outputs":
            return _of_outputs(value)
        return KINDS[name.removeprefix("guided_")](value)
    except UsageError as error:
        raise ApiError(400, f"{name}: {error}", name) from error


def _of_format(value: Mapping[str, Any]) -> Constraint | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return JsonSchema(ANY_OBJECT)
    if kind != "json_schema":
        raise UsageError(f"type is {kind!r:.60}, must be text, json_object or json_schema")
    named = value.get("json_schema")
    if not isinstance(named, Mapping) or not isinstance(named.get("schema"), Mapping):
        raise UsageError('json_schema must be {"name": …, "schema": {…}}')
    return JsonSchema(named["schema"])


def _of_outputs(value: Mapping[str, Any]) -> Constraint | None:
    """vLLM's, whose other members choose between its own libraries or ask for nothing."""
    asked = {name: entry for name, entry in value.items() if entry not in (None, False)}
    if asked.pop("json_object", None):
        asked["json"] = ANY_OBJECT
    unknown = sorted(asked.keys() - KINDS.keys())
    if unknown:
        raise UsageError(f"{unknown[0]:.60} is not known: {', '.join(KINDS)}, json_object are")
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} are two grammars: give one")
    return next((KINDS[name](entry) for name, entry in asked.items()), None)
