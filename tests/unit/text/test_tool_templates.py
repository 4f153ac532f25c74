"""Templates in the form of Llama 3, Qwen and gpt-oss: tools, calls and results reach the prompt."""

from typing import Any

import pytest

from aerie.text.chat import ChatTemplate, compile_chat_template
from aerie.text.dialects import find_dialect
from scripts.interop.scripted import MANNERS, TEMPLATES
from scripts.interop.tools import QUESTION, RESULTS, TOOLS

CALL = {"name": "weather", "arguments": '{"city": "Zürich 🏔", "days": [1]}'}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": QUESTION},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I need it.",
        "tool_calls": [{"id": "c", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "c", "content": RESULTS["weather"]},
]


def load(dialect: str) -> ChatTemplate:
    source = (TEMPLATES / f"{dialect}.jinja").read_text(encoding="utf-8")
    return compile_chat_template({"default": source}, {"bos_token": "<s>"}, dialect)


@pytest.mark.parametrize("dialect", MANNERS)
def test_a_round_of_tools_is_written(dialect: str) -> None:
    template = load(dialect)
    assert template.takes_tools and find_dialect("auto", template.sources).name == dialect
    prompt = template.render(MESSAGES, TOOLS)
    assert "The weather of a city, ☀ or not." in prompt and "units" in prompt
    assert RESULTS["weather"] in prompt
    assert '{"city": "Zürich 🏔", "days": [1]}' in prompt  # an object, not a text that is quoted
    assert ("I need it." in prompt) == (dialect == "harmony")
    without = template.render(MESSAGES[:1])
    assert "units" not in without and QUESTION in without


def test_a_template_without_tools_takes_none() -> None:
    for source, takes in (
        ("{{ messages }}", False),
        ("{{ tools }}", True),
        ("{{ toolset }}", False),
    ):
        assert compile_chat_template({"default": source}, {}, "test").takes_tools is takes
    sources = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert compile_chat_template(sources, {}, "test").takes_tools
    assert not compile_chat_template({}, {}, "test").takes_tools
