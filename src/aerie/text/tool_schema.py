"""The JSON schema of a call that must be made: what a grammar holds a text to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
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
    own = {name: _within(name, schema or ANY_OBJECT) for name, schema in tools.items()}
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
