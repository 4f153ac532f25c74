"""Messages: what reaches a template is plain, and what is malformed is named by its place."""

from __future__ import annotations

import pytest

from aerie.errors import UsageError
from aerie.text.messages import MAX_DEPTH, check_objects, plain_messages


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_text_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}]
    assert plain_messages([{"role": "user", "content": parts}]) == [
        {"role": "user", "content": "ab\n"}
    ]
    assert plain_messages([{"role": "user", "content": []}])[0]["content"] == ""


def test_other_fields_pass_as_copies() -> None:
    calls = [{"function": {"name": "f", "arguments": {"x": 1.5, "y": None, "z": True}}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    plain = plain_messages([message])[0]
    assert plain == message
    assert plain["tool_calls"] is not calls


def test_arguments_of_calls_are_objects_for_a_template() -> None:
    def sent(arguments: object) -> dict[str, object]:
        call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    plain = plain_messages([sent('{"a": {"b": "ü"}}')])
    assert plain == [sent({"a": {"b": "ü"}})]
    for text in ('{"a": ', "[1]", "", "[" * 100_000):  # what is no object, a model said so
        assert plain_messages([sent(text)]) == [sent(text)]


def test_a_message_without_calls_has_no_such_field_and_thoughts_have_both_names() -> None:
    message = {"role": "assistant", "content": "a", "tool_calls": None, "reasoning_content": "b"}
    plain = plain_messages([message, message | {"tool_calls": [], "content": ""}])
    said = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    assert plain == [said, said | {"content": "", "thinking": "b"}]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ("hello", "messages is a str"),
        ({"role": "user"}, "messages is a dict"),
        ([], "messages is empty"),
        (["hello"], r"messages\[0\] is a str"),
        ([{"content": "a"}], r"messages\[0\].role is None"),
        ([{"role": "", "content": "a"}], r"messages\[0\].role is ''"),
        ([{"role": 5, "content": "a"}], r"messages\[0\].role is 5"),
        ([{"role": "user"}], r"messages\[0\].content is None"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content is 5"),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\].content\[0\] is 'a'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url'; this engine"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text is None"),
        ([{"role": "assistant", "tool_calls": "f"}], r"messages\[0\].tool_calls is 'f'"),
        ([{"role": "assistant", "tool_calls": [5]}], r"messages\[0\].tool_calls\[0\] is 5"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\].content has a lone surrogate"),
        ([{"role": "user", "content": "a", "\udfff": 1}], "lone surrogate"),
        ([{"role": "user", "content": "a", 5: 1}], "has the key 5"),
        ([{"role": "user", "content": "a", "x": object()}], r"messages\[0\].x is a object"),
        ([{"role": "user", "content": "a", "x": nested(MAX_DEPTH + 1)}], "nested deeper than 64"),
        ([{"role": "user", "content": "a", "x": nested(100_000)}], "nested deeper than 64"),
    ],
)
def test_malformed_messages_are_refused(messages: list[dict[str, object]], place: str) -> None:
    with pytest.raises(UsageError, match=place):
        plain_messages(messages)


def test_depth_limit_is_inclusive() -> None:
    assert check_objects("tools", [{"x": nested(MAX_DEPTH - 1)}]) is not None


@pytest.mark.parametrize("value", ["tools", [1], {"a": 1}])
def test_tools_are_objects(value: list[dict[str, object]]) -> None:
    with pytest.raises(UsageError, match="tools"):
        check_objects("tools", value)


def test_none_stays_none() -> None:
    assert check_objects("documents", None) is None
