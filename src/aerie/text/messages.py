"""Messages: what a conversation may look like before a template sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from aerie.errors import UsageError
from aerie.text.tokenizer import refuse_surrogates

MAX_DEPTH = 64  # of nested lists and objects; a tool's schema is far below


def plain_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Messages as templates expect them, content as one string; others raise a UsageError.

    Parts of text are joined without a separator: no character is invented. Fields beside role and
    content (tool_calls, name, …) are the template's business and pass as they are.
    """
    checked = check_objects("messages", messages)
    if not checked:
        raise UsageError("messages is empty; send at least one message with role and content")
    return [_plain_message(f"messages[{index}]", fields) for index, fields in enumerate(checked)]


def check_objects(
    what: str, values: Sequence[Mapping[str, object]] | None
) -> list[dict[str, object]] | None:
    """A list of JSON objects, copied; None stays None."""
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise UsageError(f"{what} is a {type(values).__name__}, must be a list of objects")
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise UsageError(
                f"{what}[{index}] is a {type(value).__name__}, must be an object with named fields"
            )
    return [_plain_object(f"{what}[{index}]", value, 1) for index, value in enumerate(values)]


def _plain_message(place: str, fields: dict[str, object]) -> dict[str, object]:
    role = fields.get("role")
    if not isinstance(role, str) or not role:
        raise UsageError(f"{place}.role is {role!r:.60}, must be a non-empty string")
    plain = fields | {"content": _plain_content(place, fields)}
    thoughts = fields.get("reasoning_content")
    if isinstance(thoughts, str) and not plain["content"]:
        plain.setdefault("thinking", thoughts)  # gpt-oss' word; it refuses both in one message
    # Templates ask whether there are calls by the field, so one that has none is left out.
    calls = plain.pop("tool_calls", None)
    return plain | ({"tool_calls": _plain_calls(place, calls)} if calls else {})


def _plain_calls(place: str, calls: object) -> list[object]:
    """Calls as templates expect them: arguments as an object, where clients send its text."""
    if not isinstance(calls, list):
        raise UsageError(f"{place}.tool_calls is {calls!r:.60}, must be a list of calls")
    return [_plain_call(f"{place}.tool_calls[{i}]", call) for i, call in enumerate(calls)]


def _plain_call(place: str, call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UsageError(f"{place} is {call!r:.60}, must have a function with a name")
    assert isinstance(call, dict)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    return call | {"function": function | {"arguments": _read_object(place, arguments)}}


def _read_object(place: str, text: str) -> object:
    """The object of a text; what is none stays as it was written, for a model to read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _plain(f"{place}.function.arguments", found, 1) if isinstance(found, dict) else text


def _plain_content(place: str, fields: dict[str, object]) -> str | None:
    content = fields.get("content")
    if isinstance(content, str):
        return content
    if content is None and fields.get("tool_calls"):
        return None  # an assistant that only calls tools says nothing
    if not isinstance(content, list):
        raise UsageError(
            f"{place}.content is {content!r:.60}, must be a string or a list of text parts"
        )
    parts = enumerate(content)
    return "".join(_part_text(f"{place}.content[{index}]", part) for index, part in parts)


def _part_text(place: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else part
        raise UsageError(f"{place} is {kind!r:.60}; this engine reads parts of type 'text' only")
    text = part.get("text")
    if not isinstance(text, str):
        raise UsageError(f"{place}.text is {text!r:.60}, must be a string")
    return text


def _plain_object(place: str, value: Mapping[str, object], depth: int) -> dict[str, object]:
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"{place} has the key {key!r:.60}, must be a string")
        refuse_surrogates(key, f"a key of {place}")
    return {key: _plain(f"{place}.{key}", entry, depth) for key, entry in value.items()}


def _plain(place: str, value: object, depth: int) -> object:
    """A copy made of JSON's types alone: a template can reach nothing of Python through it."""
    if depth > MAX_DEPTH:
        raise UsageError(f"{place:.200} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        refuse_surrogates(value, place)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return _plain_object(place, value, depth + 1)
    if isinstance(value, list | tuple):
        return [_plain(f"{place}[{i}]", entry, depth + 1) for i, entry in enumerate(value)]
    raise UsageError(f"{place} is a {type(value).__name__}, must be text, a number, a list, …")
