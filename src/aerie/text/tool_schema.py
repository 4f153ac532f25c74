"""A call that must be made: the schema that a grammar holds a text to, and its reader."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aerie.text.calls import Argued, Called, Part, Said, Span

MOST_CALLS = 16  # in one answer that must call


def tool_schema(
    tools: Mapping[str, Mapping[str, Any] | None], is_parallel: bool = False
) -> dict[str, Any]:
    """One call of one of these tools, by name and schema; `is_parallel`: a list of calls.

    Each tool's schema stands whole under `$defs`, so that its own references stay within it.
    """
    calls = [_call(name) for name in tools]
    one = calls[0] if len(calls) == 1 else {"anyOf": calls}
    listed = {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_CALLS}
    own = {
        name: _within(name, {"type": "object", **(schema or {})}) for name, schema in tools.items()
    }
    return {**(listed if is_parallel else one), "$defs": own}


def _call(name: str) -> dict[str, Any]:
    fields = {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}}
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def _within(name: str, schema: Any) -> Any:
    """The same with its references to itself, `#…`, where it stands now."""
    if isinstance(schema, Mapping):
        return {
            key: f"#/$defs/{name}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _within(name, value)
            for key, value in schema.items()
        }
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [_within(name, entry) for entry in schema]
    return schema


class ForcedCalls:
    """Reads what such a schema lets through, so that arguments are told as they come.

    It cannot be malformed. A text that was cut has a call whose arguments are cut.
    """

    _HEAD = re.compile(r'[\s\[\]},]*\{\s*"name"\s*:\s*"([\w-]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')

    def __init__(self) -> None:
        self._held = ""
        self._span: Span | None = None  # of the arguments that `_held` begins with
        self._n_told = 0  # characters of them
        self._has_called = False

    def push(self, text: str) -> list[Part]:
        """What so much more text says."""
        self._held += text
        found: list[Part] = []
        while self._held:
            if self._span is None:
                head = self._HEAD.match(self._held)
                if head is None:
                    break
                found.append(Called(head.group(1)))
                self._held, self._span, self._n_told = self._held[head.end() :], Span(), 0
                self._has_called = True
            end = self._span.end(self._held, 0)
            told = self._held[self._n_told : end]
            found += [Argued(told)] if told else []
            self._n_told += len(told)
            if end is None:
                break
            self._held, self._span = self._held[end:], None
        return found

    def finish(self) -> list[Part]:
        """A text that was cut before its first call says what it has."""
        return [Said(self._held)] if self._held and not self._has_called else []
