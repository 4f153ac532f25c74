"""The schema of a call that must be made: each tool's own references stay within it."""

from typing import Any

from aerie.text.tool_schema import tool_schema

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "day": {"$ref": "#/$defs/day"}},
    "$defs": {"day": {"type": "integer"}},
}
NAMES = {"name": {"const": "grow"}, "arguments": {"$ref": "#/$defs/grow"}}
CALL = {
    "type": "object",
    "properties": NAMES,
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


def test_one_call_of_one_tool() -> None:
    own = {
        **TREE,
        "properties": {"left": {"$ref": "#/$defs/grow"}, "day": {"$ref": "#/$defs/grow/$defs/day"}},
    }
    assert tool_schema({"grow": TREE}) == {**CALL, "$defs": {"grow": own}}


def test_several_calls_of_several_tools() -> None:
    found = tool_schema({"grow": None, "add": {"type": "object"}}, is_parallel=True)
    assert found["type"] == "array" and found["minItems"] == 1
    names = [one["properties"]["name"]["const"] for one in found["items"]["anyOf"]]
    assert names == ["grow", "add"] and found["$defs"]["grow"] == {"type": "object"}
