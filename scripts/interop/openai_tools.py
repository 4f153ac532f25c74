"""OpenAI's own client runs tools in a loop, whole and streamed, against a scripted model.

python openai_tools.py URL MODEL
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from checks import Checks, conclude
from tools import ARGUMENTS, FUNCTIONS, QUESTION, TOOLS, is_answer

MOST_TURNS = 5
ADD = {"type": "function", "function": {"name": "add"}}


def run(name: str, arguments: str) -> str:
    return FUNCTIONS[name](**json.loads(arguments))


def whole(client: openai.OpenAI, model: str) -> Checks:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    called, usages = [], []
    for _ in range(MOST_TURNS):
        reply = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        message, usages = reply.choices[0].message, [*usages, reply.usage]
        if not message.tool_calls:
            break
        assert reply.choices[0].finish_reason == "tool_calls"
        messages.append(message)
        for call in message.tool_calls:
            result = run(call.function.name, call.function.arguments)
            called.append((call.function.name, json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    extra = reply.model_extra or {}
    return [
        ("calls", called),
        ("each was called once", {name for name, _ in called} == FUNCTIONS.keys()),
        ("the answer has their results", is_answer(message.content) and message.content),
        ("usage", all(usage.completion_tokens > 0 for usage in usages)),
        ("acceptance length", extra["metrics"]["speculative_decoding"]["mean_acceptance_length"]),
    ]


def streamed(client: openai.OpenAI, model: str) -> Checks:
    """By the client's own accumulator, which checks names and arguments as they come."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    kinds: set[str] = set()
    for _ in range(MOST_TURNS):
        with client.chat.completions.stream(model=model, messages=messages, tools=TOOLS) as stream:
            kinds |= {event.type for event in stream}
            choice = stream.get_final_completion().choices[0]
        if not choice.message.tool_calls:
            break
        assert choice.finish_reason == "tool_calls"
        messages.append(choice.message)
        for call in choice.message.tool_calls:
            result = run(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return [
        ("events of the stream", sorted(kinds)),
        ("arguments were streamed", "tool_calls.function.arguments.delta" in kinds),
        ("the streamed answer has their results", is_answer(choice.message.content)),
    ]


def choices(client: openai.OpenAI, model: str) -> Checks:
    messages = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {"model": model, "messages": messages, "tools": TOOLS}
    none = client.chat.completions.create(**asked, tool_choice="none").choices[0]
    single = client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0]
    forced = {}
    for word, choice in (("both", "required"), ("add", ADD)):
        must = [{"role": "user", "content": f"You must call {word}."}]
        reply = client.chat.completions.create(**{**asked, "messages": must}, tool_choice=choice)
        calls = [call.function for call in reply.choices[0].message.tool_calls]
        forced[word] = {call.name: json.loads(call.arguments) for call in calls}
    try:
        client.chat.completions.create(**{**asked, "tools": [*TOOLS, TOOLS[0]]})
    except openai.BadRequestError as error:
        refusal = error.param == "tools" and str(error)
    return [
        ("tool_choice none calls nothing", none.finish_reason == "stop" and none.message.content),
        ("one call where parallel ones are not wanted", len(single.message.tool_calls) == 1),
        ("tool_choice required", forced["both"] == ARGUMENTS),
        ("a named function", forced["add"] == {"add": ARGUMENTS["add"]} and forced["add"]),
        ("two tools of one name are refused", refusal),
    ]


def main() -> None:
    url, model = sys.argv[1:]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        conclude(whole(client, model) + streamed(client, model) + choices(client, model))


if __name__ == "__main__":
    main()
