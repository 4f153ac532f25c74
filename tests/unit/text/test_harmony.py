"""Harmony: prompts as the openai-harmony package renders them, what is refused, what is bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.errors import UsageError
from aerie.text.harmony import Setting, render_harmony
from aerie.text.tool_types import MOST_INLINED, namespace_text
from scripts.harmony_oracle import CALL, CASES, DATE, RESULT, USER

RENDERED = json.loads((Path(__file__).parent / "harmony_rendered.json").read_text("utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_prompt_is_the_packages(name: str) -> None:
    assert RENDERED["date"] == DATE and RENDERED["texts"].keys() == CASES.keys()
    case = CASES[name]
    own = render_harmony(case["messages"], case["tools"], Setting(DATE, case["effort"]))
    assert own == RENDERED["texts"][name]


def rendered(*messages: dict[str, Any]) -> str:
    whole = render_harmony(messages, None, Setting(DATE))
    return whole.partition("every message.<|end|>")[2]


def test_every_role_has_its_place() -> None:
    developer = {"role": "developer", "content": [{"type": "text", "text": "Now in French."}]}
    found = rendered(USER, developer, {"role": "user", "content": "and?"})
    assert found == (
        f"<|start|>user<|message|>{USER['content']}<|end|>"
        "<|start|>developer<|message|># Instructions\n\nNow in French.<|end|>"
        "<|start|>user<|message|>and?<|end|><|start|>assistant"
    )
    # The words of other servers for thoughts; arguments as they were sent, or as an object.
    call = {"id": "c", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    answer = {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call]}
    assert "<|channel|>analysis<|message|>Hm.<|end|>" in rendered(USER, answer)
    assert 'json<|message|>{"city": "Zürich"}<|call|>' in rendered(USER, answer)


def test_a_result_finds_its_call() -> None:
    head = "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"
    assert head in rendered(USER, CALL, RESULT)
    assert head in rendered(USER, CALL, {"role": "tool", "content": "a"})  # the only one
    assert head in rendered(USER, {"role": "tool", "name": "weather", "content": "a"})
    with pytest.raises(UsageError, match=r"messages\[1\]\.tool_call_id is 'c', which no call"):
        rendered(USER, RESULT)


@pytest.mark.parametrize(
    ("messages", "tools", "words"),
    [
        ([], None, "messages is empty"),
        ([{"role": "user", "content": 1}], None, "must be a string"),
        ([{**CALL, "tool_calls": [{}]}], None, "must have a function with a name"),
        ([USER], [{"type": "function"}], r"tools\[0\].*must have a function with a name"),
    ],
)
def test_what_is_malformed_is_refused(messages: Any, tools: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        render_harmony(messages, tools, Setting(DATE))


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(UsageError, match="reasoning_effort is 'huge', must be one of low, medium"):
        Setting(DATE, "huge")


def types(**properties: Any) -> str:
    defs = properties.pop("defs", {})
    schema = {"type": "object", "properties": properties, "$defs": defs}
    text = namespace_text([{"name": "f", "parameters": schema}])
    return text.partition("(_: {\n")[2].partition("}) => any;")[0]


def test_references_are_written_out_and_bounded() -> None:
    part = {"type": "object", "properties": {"units": {"type": "string"}}}
    optional = {"anyOf": [{"$ref": "#/$defs/part"}, {"type": "null"}]}
    assert types(a=optional, defs={"part": part}) == "a?: {\n    units?: string,\n    } | null,\n"
    assert types(a={"$ref": "#/$defs/gone"}, b={"$ref": "other.json"}) == "a?: any,\nb?: any,\n"
    assert types(a={"enum": ["x", "y"]}) == 'a?: "x" | "y",\n'
    endless = {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}}
    assert types(a={"$ref": "#/$defs/list"}, defs={"list": endless}).count("next") < 65
    twice = {
        f"d{i}": {"type": "array", "items": {"oneOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}}
        for i in range(40)
    }
    assert len(types(a={"$ref": "#/$defs/d0"}, defs=twice)) < 4 * MOST_INLINED
