"""Fields that ask for nothing: taken at their neutral values, refused by name at any other."""

from typing import Any

import pytest
from pydantic import ValidationError

from aerie.server.fields import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    StreamOptions,
    Strict,
    TokenizeRequest,
)
from aerie.server.neutral import LLAMA_CPP, NEUTRAL, OPENAI, SGLANG, VLLM, Values, is_neutral
from aerie.server.sglang import GenerateRequest, SglangSampling

LEAST: dict[type[Strict], dict[str, Any]] = {
    CompletionRequest: {"prompt": "a"},
    ChatRequest: {"messages": [{"role": "user", "content": "a"}]},
    GenerateRequest: {"text": "a"},
    SglangSampling: {},
    StreamOptions: {},
    TokenizeRequest: {"prompt": "a"},
    DetokenizeRequest: {"tokens": [1]},
}
FORMS = [form for form in LEAST if form.neutral]
FOREIGN = ["not", "neutral"]
# A value that asks for something, of the fields that clients would miss most.
ASKS_FOR = {
    "best_of": 2,
    "chat_template_kwargs": {"enable_thinking": False},
    "echo": True,
    "json_schema": "{}",
    "lora_path": "adapter",
    "metadata": "text",
    "min_new_tokens": 1,
    "min_tokens": 1,
    "mirostat": 2,
    "prediction": {"type": "content", "content": "a"},
    "priority": 1,
    "response_format": {"type": "json_object"},
    "return_hidden_states": True,
    "service_tier": "flex",
    "skip_special_tokens": False,
    "store": True,
    "suffix": "b",
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "top_logprobs": 1,
    "use_beam_search": True,
}


def passed_over(form: type[Strict]) -> dict[str, Values]:
    """Neutral values of the fields that are not its own."""
    return {name: form.neutral[name] for name in form.neutral if name not in form.model_fields}


def examples(values: Values) -> list[Any]:
    """Everything a field may be set to; of a type, one value."""
    of_type: dict[object, Any] = {str: "a name", dict: {"a": "label"}}
    return [None, *(of_type[v] if isinstance(v, type) else v for v in values)]


def refused(form: type[Strict], **said: Any) -> list[tuple[Any, ...]]:
    """Where a request is refused; fails if it is taken."""
    with pytest.raises(ValidationError) as error:
        form.model_validate({**LEAST[form], **said})
    return [found["loc"] for found in error.value.errors()]


@pytest.mark.parametrize("form", FORMS)
def test_a_neutral_value_is_as_if_nothing_was_said(form: type[Strict]) -> None:
    plain = form.model_validate(LEAST[form])
    fields = passed_over(form)
    for name, values in fields.items():
        for value in examples(values):
            assert form.model_validate({**LEAST[form], name: value}) == plain, (name, value)
    everything = {name: examples(values)[-1] for name, values in fields.items()}
    assert form.model_validate({**LEAST[form], **everything}) == plain


@pytest.mark.parametrize("form", FORMS)
def test_any_other_value_is_refused_by_name(form: type[Strict]) -> None:
    fields = passed_over(form)
    for name, values in fields.items():
        assert refused(form, **{name: FOREIGN}) == [(name,)]
        # 0 is not false and 1 is not true, though Python thinks so.
        for value in values:
            if isinstance(value, bool | int):
                other = int(value) if isinstance(value, bool) else bool(value)
                assert refused(form, **{name: other}) == [(name,)]
    for name in fields.keys() & ASKS_FOR.keys():
        assert refused(form, **{name: ASKS_FOR[name]}) == [(name,)]
    assert refused(form, no_such_field=None) == [("no_such_field",)]


def test_every_field_that_asks_for_something_is_tried() -> None:
    assert ASKS_FOR.keys() <= NEUTRAL.keys()
    assert not [name for name in ASKS_FOR if is_neutral(ASKS_FOR[name], NEUTRAL[name])]


def test_no_field_is_in_two_tables() -> None:
    assert len(NEUTRAL) == len(OPENAI) + len(VLLM) + len(SGLANG) + len(LLAMA_CPP)


@pytest.mark.parametrize("form", LEAST)
def test_null_means_that_nothing_was_said(form: type[Strict]) -> None:
    plain = form.model_validate(LEAST[form])
    for name, field in form.model_fields.items():
        if field.is_required():
            assert {place[0] for place in refused(form, **{name: None})} == {name}
        elif name not in LEAST[form]:
            assert form.model_validate({**LEAST[form], name: None}) == plain, name
    optional = form.model_fields.keys() - LEAST[form].keys()
    assert form.model_validate({**LEAST[form], **dict.fromkeys(optional)}) == plain


@pytest.mark.parametrize("form", LEAST)
def test_the_schema_says_where_null_is_taken(form: type[Strict]) -> None:
    schema = form.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == form.model_fields.keys()
    for name, field in form.model_fields.items():
        kinds = schema["properties"][name].get("anyOf", ())
        assert ({"type": "null"} in kinds) == (not field.is_required()), name
