"""The prompt of a chat: by Harmony or by the template, with what a request says of thinking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerie.server.chats import prompt_text
from aerie.server.fields import ChatRequest
from aerie.server.problems import ApiError
from aerie.server.renderer import Renderer
from aerie.server.samples import Facts
from aerie.text.chat import compile_chat_template

USER = {"role": "user", "content": "hello"}


def facts(source: str, writes_harmony: bool) -> Facts:
    template = compile_chat_template({"default": source}, {}, "test")
    unused: Any = None
    return Facts(
        tokenizer=unused,
        template=template,
        config=unused,
        limits=unused,
        device="cpu",
        dtype="float32",
        n_pages=0,
        page_size=1,
        load_seconds={},
        dialect=unused,
        writes_harmony=writes_harmony,
    )


def written(own: Facts, **said: Any) -> str:
    async def run() -> str:
        renderer = Renderer(seconds=30.0)
        try:
            return await prompt_text(renderer, own, ChatRequest(messages=[USER], **said), None)
        finally:
            await renderer.close()

    return asyncio.run(run())


def test_harmony_says_how_much_to_think() -> None:
    own = facts("unused", writes_harmony=True)
    for said, effort in (({}, "medium"), ({"reasoning_effort": "none"}, "medium")):
        assert f"Reasoning: {effort}\n" in written(own, **said)
    assert "Reasoning: high\n" in written(own, reasoning_effort="high")
    assert written(own).endswith("<|start|>user<|message|>hello<|end|><|start|>assistant")


def test_a_template_is_told_if_it_asks() -> None:
    asking = facts("{{ reasoning_effort if reasoning_effort is defined else 'unsaid' }}", False)
    assert written(asking, reasoning_effort="low") == "low"
    assert written(asking) == written(asking, reasoning_effort="none") == "unsaid"
    with pytest.raises(ApiError, match="template writes none") as refused:
        written(facts("{{ messages }}", False), reasoning_effort="low")
    assert refused.value.param == "reasoning_effort"


def test_messages_that_harmony_cannot_write_are_refused() -> None:
    asked = ChatRequest(messages=[USER, {"role": "tool", "tool_call_id": "c", "content": "a"}])
    prompt = prompt_text(Renderer(30.0), facts("unused", writes_harmony=True), asked, None)
    with pytest.raises(ApiError, match="which no call before it has") as refused:
        asyncio.run(prompt)
    assert refused.value.status == 400 and refused.value.param == "messages"
