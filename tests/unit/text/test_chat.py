"""Chat: the same prompts as transformers, and templates that cannot harm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aerie.errors import CheckpointError, UsageError
from aerie.text.chat import ChatTemplate, compile_chat_template, load_chat_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 < 2 & 'ä' 😀?"},
    {"role": "assistant", "content": " yes "},
    {"role": "user", "content": "Why?"},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"b": 1, "a": "<"}}}]

# Each uses something that public templates use.
TEMPLATES = {
    "turns": """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
<<{{ message.content | trim }}>>
        {%- continue %}
    {%- endif %}
    [{{ message['role'] }}] {{ message['content'] | trim + eos_token }}
{% endfor %}
{% if add_generation_prompt %}
[assistant]{% endif %}""",
    "namespace": """{% set ns = namespace(n=0) %}
{% for message in messages %}{% set ns.n = ns.n + 1 %}{% if loop.last %}{{ ns.n }}{% endif %}
{% endfor %}{% macro shout(text) %}{{ text | upper }}!{% endmacro %}{{ shout(messages[0].role) }}
{{ messages[1:] | length }}{{ messages[-1]['content'].split(' ')[0] }}{{ undefined_thing }}""",
    "tools": """{% if tools is not none %}{% for tool in tools %}{{ tool | tojson }}
{{ tool | tojson(indent=2) }}{{ tool.function.parameters.items() | list }}{% endfor %}{% endif %}
{% for message in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}
{{ message | tojson }}{% endfor %}{{ documents is none }}""",
    "generation": """{% for message in messages %}
{% generation %}{% set inner = message.content %}{{ inner }}{% endgeneration %}
{{ inner is defined }}{% endfor %}""",
}


def single(source: str, **tokens: str) -> ChatTemplate:
    return compile_chat_template({"default": source}, tokens, "test")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["talk", "tools"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_equals_transformers(
    name: str, tools: list[Mapping[str, object]] | None, add_generation_prompt: bool
) -> None:
    oracle = pytest.importorskip("transformers.utils.chat_template_utils")
    rendered, _ = oracle.render_jinja_template(
        [MESSAGES],
        tools=tools,
        chat_template=TEMPLATES[name],
        add_generation_prompt=add_generation_prompt,
        **TOKENS,
    )
    template = single(TEMPLATES[name], **TOKENS)
    assert template.render(MESSAGES, tools, add_generation_prompt) == rendered[0]


def save(folder: Path, config: object = None, jinja: str | None = None) -> Path:
    if config is not None:
        text = json.dumps(config)
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    return folder


def test_template_file_wins_and_tokens_come_from_the_config(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<é>"}, "eos_token": None, "chat_template": "config"}
    template = load_chat_template(save(tmp_path, config, "{{ bos_token }}{{ eos_token }}file"))
    assert template.render(MESSAGES) == "<é>file"
    assert template.origin == "chat_template.jinja"


def test_template_in_the_config(tmp_path: Path) -> None:
    template = load_chat_template(save(tmp_path, {"chat_template": "{{ messages | length }}"}))
    assert template.render(MESSAGES) == "4"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "talk"}, {"name": "tool_use", "template": "tools"}]
    template = load_chat_template(save(tmp_path, {"chat_template": named}))
    assert template.render(MESSAGES) == "talk"
    assert template.render(MESSAGES, tools=TOOLS) == "tools"


@pytest.mark.parametrize("config", [None, {}, {"chat_template": None}, {"chat_template": []}])
def test_absent_template_says_what_to_do(tmp_path: Path, config: object) -> None:
    template = load_chat_template(save(tmp_path, config))
    with pytest.raises(UsageError, match="send a plain prompt"):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    "value", [5, {"default": "x"}, ["x"], [{"name": "default"}], [{"template": "x"}]]
)
def test_malformed_template_field_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="must be a string or a list of objects"):
        load_chat_template(save(tmp_path, {"chat_template": value}))


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% nonsense %}", "{{ x | nothing }}"])
def test_syntax_errors_are_found_at_load(tmp_path: Path, source: str) -> None:
    with pytest.raises(CheckpointError, match="does not parse"):
        load_chat_template(save(tmp_path, jinja=source))


def test_template_may_refuse() -> None:
    with pytest.raises(UsageError, match="refuses these messages: roles must alternate"):
        single("{{ raise_exception('roles must alternate') }}").render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages[0].clear() }}",
        "{{ cycler.__init__.__globals__.items() }}",
        "{{ raise_exception.__globals__.items() }}",
        "{{ range(10000000) }}",
        "{% include 'tokenizer.json' %}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
    ],
)
def test_sandbox_holds(source: str) -> None:
    kept = [dict(message) for message in MESSAGES]
    with pytest.raises(UsageError, match="the chat template"):
        single(source).render(MESSAGES)
    assert kept == MESSAGES


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ no.thing }}"])
def test_failing_template_is_a_usage_error(source: str) -> None:
    with pytest.raises(UsageError, match=r"the chat template (fails|refuses)"):
        single(source).render(MESSAGES)


def test_endless_recursion_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="the chat template fails"):
        single("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render(MESSAGES)


def test_output_is_bounded() -> None:
    nested = "{% for a in range(9999) %}{% for b in range(9999) %}xy{% endfor %}{% endfor %}"
    template = replace(single(nested), max_chars=1000)
    with pytest.raises(UsageError, match="longer than 1000 characters"):
        template.render(MESSAGES)
    assert replace(single("x" * 1000), max_chars=1000).render(MESSAGES) == "x" * 1000


def test_date_is_a_date() -> None:
    year = single("{{ strftime_now('%Y') }}").render(MESSAGES)
    assert len(year) == 4 and year.isdigit()


def test_request_cannot_replace_a_helper() -> None:
    """The signature is fixed: a message's fields stay inside the message."""
    message = {"role": "user", "content": "a", "bos_token": "evil", "raise_exception": "evil"}
    assert (
        single("{{ bos_token }}{{ messages[0].content }}", bos_token="<s>").render([message])
        == "<s>a"
    )


@pytest.mark.parametrize(
    "expression", ["10 ** (10 ** 9)", "'%999999999d' % 1", "'a' | center(4000000000)"]
)
def test_what_is_constant_is_not_computed_by_who_compiles(expression: str) -> None:
    for source in (f"{{{{ {expression} }}}}", f"{{% set x = {expression} %}}"):
        assert single("{% if messages[0].role == 'bad' %}" + source + "{% endif %}").templates
