"""The schema of a call that must be made: each tool's own references stay within it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import aerie
from aerie.text.calls import Argued, Called, Part, Said
from aerie.text.grammar import Grammars, JsonSchema
from aerie.text.tokenizer import load_tokenizer
from aerie.text.tool_schema import ForcedCalls, tool_schema

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


CALLS = (("grow", '{"left": {"day": 1}, "q": "\\"}] 🏔"}'), ("add", '{"a": [1, {"b": {}}]}'))
ONE = " {" + f'"name" : "grow",\n"arguments": {CALLS[0][1]} }}\n'
LIST = "[" + ", ".join(f'{{"name": "{name}", "arguments": {own}}}' for name, own in CALLS) + "]"


def read(*pieces: str) -> list[tuple[str, str]]:
    parser = ForcedCalls()
    parts: list[Part] = [part for piece in pieces for part in parser.push(piece)]
    found: list[tuple[str, str]] = []
    for part in [*parts, *parser.finish()]:
        if isinstance(part, Called):
            found.append((part.name, ""))
        elif isinstance(part, Argued):
            name, text = found[-1]
            found[-1] = (name, text + part.text)
        else:
            found.append(("", part.text))
    return found


@pytest.mark.parametrize(("text", "want"), [(ONE, CALLS[:1]), (LIST, CALLS)])
def test_forced_calls_are_read_the_same_wherever_they_are_cut(text: str, want: object) -> None:
    assert tuple(read(text)) == tuple(read(*text)) == want
    for cut in range(1, len(text)):
        assert tuple(read(text[:cut], text[cut:])) == want


def test_arguments_are_told_as_they_come_and_what_is_cut_stays_cut() -> None:
    parser = ForcedCalls()
    assert parser.push('{"name": "add", "arguments": ') == []
    assert parser.push('{"a"') == [Called("add"), Argued('{"a"')]
    assert parser.push(": 1") == [Argued(": 1")] and parser.finish() == []
    begun = ForcedCalls()
    assert begun.push('{"name') == [] and begun.finish() == [Said('{"name')]


@pytest.mark.parametrize(
    ("name", "arguments", "is_call"),
    [
        ("grow", {"left": {"left": {"day": 1}}}, True),
        ("grow", {"left": {"day": "x"}}, False),
        ("add", {"a": {"deep": [1]}}, True),
        ("add", {}, False),
        ("other", {}, False),
    ],
)
def test_a_grammar_lets_calls_through_and_nothing_else(
    name: str, arguments: Mapping[str, Any], is_call: bool
) -> None:
    pytest.importorskip("llguidance")
    tokenizer = load_tokenizer(Path(aerie.__file__).parent / "assets/pair/target")
    schema = tool_schema({"grow": TREE, "add": {"required": ["a"], "properties": {"a": {}}}}, True)
    compiled = Grammars(tokenizer, tokenizer.vocab_size).compiled(JsonSchema(schema))
    text = json.dumps([{"name": name, "arguments": arguments}] * 2)
    matcher = compiled.matcher(tokenizer.encode(text, add_special_tokens=False))
    assert (matcher.error is None and matcher.step(tokenizer.eos_ids[0])) == is_call
