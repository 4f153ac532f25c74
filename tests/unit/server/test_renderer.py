"""Chats in a process of its own: whatever a template does, the next chat is rendered."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aerie.server.problems import ApiError
from aerie.server.renderer import Renderer
from aerie.text.chat import ChatTemplate, compile_chat_template

MESSAGES = [{"role": "user", "content": "What is 1 < 2, ä, 😀?"}]
LONG = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
# Each runs for hours, takes a gigabyte or more, or both; only when it is told to.
HOSTILE = {
    "loops": LONG,
    "a wide number": "{{ '%999999999d' % 1 }}",
    "a large power": "{{ 10 ** (10 ** 8) }}",
    "much text": "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
}


def template(source: str) -> ChatTemplate:
    guarded = "{% if messages[0].role == 'bad' %}" + source + "{% endif %}"
    return compile_chat_template(
        {"default": guarded + "{{ messages[0].content }}"}, {"bos_token": "<s>"}, "a test"
    )


def run(test: Callable[[Renderer], Awaitable[None]], seconds: float = 1.0) -> None:
    async def scenario() -> None:
        renderer = Renderer(seconds)
        try:
            await test(renderer)
        finally:
            await renderer.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def bad(content: str = "x") -> list[dict[str, Any]]:
    return [{"role": "bad", "content": content}]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_does_not_end_is_ended(name: str) -> None:
    own = template(HOSTILE[name])

    async def scenario(renderer: Renderer) -> None:
        assert await renderer.render(own, MESSAGES) == MESSAGES[0]["content"]
        with pytest.raises(ApiError) as refused:
            await renderer.render(own, bad())
        assert refused.value.status == 400 and refused.value.param == "messages"
        assert await renderer.render(own, MESSAGES) == MESSAGES[0]["content"]
        assert renderer.trouble is None

    run(scenario)


def test_trouble_is_told_until_a_chat_ends_well() -> None:
    own = template(LONG)

    async def scenario(renderer: Renderer) -> None:
        with pytest.raises(ApiError, match="too long"):
            await renderer.render(own, bad())
        assert renderer.trouble is not None and "too long" in renderer.trouble

    run(scenario, 0.2)


def test_what_is_wrong_with_the_messages_is_said() -> None:
    own = template("")

    async def scenario(renderer: Renderer) -> None:
        deep: Any = "x"
        for _ in range(900):
            deep = [deep]
        for messages, words in (
            ([{"content": "a"}], "role"),
            ([{"role": "user", "content": "\ud800"}], "surrogate"),
            ([{"role": "user", "content": deep}], "content"),
            ([{"role": "user", "content": "a", "more": deep}], "nested"),
        ):
            with pytest.raises(ApiError, match=words) as refused:
                await renderer.render(own, messages)
            assert refused.value.status == 400 and len(str(refused.value)) < 400

    run(scenario)


def test_who_leaves_does_not_spoil_the_next_chat() -> None:
    own = template(LONG)

    async def scenario(renderer: Renderer) -> None:
        await renderer.render(own, MESSAGES)
        leaving = asyncio.create_task(renderer.render(own, MESSAGES))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(renderer.render(own, bad()))
        await asyncio.sleep(0)
        leaving.cancel()
        waiting.cancel()
        other = [{"role": "user", "content": "another"}]
        assert await renderer.render(own, other) == "another"

    run(scenario, 20)


def test_where_no_process_can_be_started_chats_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nothing/here")

    async def scenario(renderer: Renderer) -> None:
        with pytest.raises(ApiError, match="retry later") as refused:
            await renderer.render(template(""), MESSAGES)
        assert refused.value.status == 503

    run(scenario)


def test_a_long_conversation_passes() -> None:
    text = "中文 <b>" * 700_000

    async def scenario(renderer: Renderer) -> None:
        found = await renderer.render(template(""), [{"role": "user", "content": text}])
        assert found == text

    run(scenario, 30)
