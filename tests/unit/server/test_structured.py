"""Which grammar a request asks for, in whose words ever."""

from typing import Any

import pytest

from aerie.server.fields import ChatRequest, CompletionRequest, Structured
from aerie.server.problems import ApiError
from aerie.server.sglang import GenerateRequest
from aerie.text.grammar import Constraint, Grammar, JsonSchema, Regex

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "point", "strict": True, "schema": SCHEMA}
ASKED: dict[str, tuple[dict[str, Any], Constraint | None]] = {
    "text": ({"response_format": {"type": "text"}}, None),
    "null": ({"response_format": None, "guided_json": None}, None),
    "any object": ({"response_format": {"type": "json_object"}}, JsonSchema({"type": "object"})),
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        JsonSchema(SCHEMA),
    ),
    "guided schema": ({"guided_json": SCHEMA}, JsonSchema(SCHEMA)),
    "guided text": ({"guided_json": '{"type": "object"}'}, JsonSchema({"type": "object"})),
    "regex": ({"guided_regex": "a+"}, Regex("a+")),
    "grammar": ({"guided_grammar": "start: /a/"}, Grammar("start: /a/")),
    "choice": ({"guided_choice": ["a", "b"]}, Grammar.of_choices(["a", "b"])),
    "outputs": ({"structured_outputs": {"regex": "a+", "json": None}}, Regex("a+")),
    "outputs object": (
        {"structured_outputs": {"json_object": True}},
        JsonSchema({"type": "object"}),
    ),
    "outputs nothing": ({"structured_outputs": {}}, None),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"response_format": {"type": "xml"}}, "response_format"),
    "no kind": ({"response_format": {}}, "response_format"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "no JSON": ({"guided_json": "{"}, "guided_json"),
    "empty": ({"guided_choice": []}, "guided_choice"),
    "unknown": ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
    "two in one": ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    "two": ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_client_s_words_are_understood(name: str) -> None:
    said, grammar = ASKED[name]
    assert CompletionRequest(prompt="a", **said).params(9).grammar == grammar
    assert ChatRequest(messages=[{"role": "user"}], **said).params(9).grammar == grammar
    assert set(said) <= Structured.model_fields.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_by_name(name: str) -> None:
    said, param = REFUSED[name]
    with pytest.raises(ApiError) as refused:
        CompletionRequest(prompt="a", **said).params(9)
    assert refused.value.status == 400 and refused.value.param == param


def test_sglang_says_it_otherwise() -> None:
    for said, grammar in (
        ({"json_schema": '{"type": "object"}'}, JsonSchema({"type": "object"})),
        ({"regex": "a+"}, Regex("a+")),
        ({"ebnf": 'root ::= "a"'}, Grammar('root ::= "a"')),
        ({}, None),
    ):
        asked = GenerateRequest.model_validate({"text": "a", "sampling_params": said})
        assert asked.completions()[0].params(9).grammar == grammar
