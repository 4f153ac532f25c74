"""Messages: what a conversation may look like before a template sees it."""

from __future__ import annotations

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
    return fields | {"content": _plain_content(place, fields)}


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
