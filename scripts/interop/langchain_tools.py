"""LangChain runs tools in a loop, its own agent and one by hand, against a scripted model.

python langchain_tools.py URL MODEL
"""

from __future__ import annotations

import asyncio
import sys

from checks import Checks, conclude
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from tools import ARGUMENTS, FUNCTIONS, QUESTION, TOOLS, is_answer

MOST_TURNS = 5
TOOL_LIST = [
    StructuredTool.from_function(
        FUNCTIONS[tool["function"]["name"]],
        name=tool["function"]["name"],
        description=tool["function"]["description"],
        args_schema=tool["function"]["parameters"],
    )
    for tool in TOOLS
]
BY_NAME = {tool.name: tool for tool in TOOL_LIST}


def by_hand(model: ChatOpenAI, is_streamed: bool) -> Checks:
    bound = model.bind_tools(TOOL_LIST)
    messages = [HumanMessage(QUESTION)]
    called = []
    for _ in range(MOST_TURNS):
        if is_streamed:
            first, *rest = bound.stream(messages)
            reply = sum(rest, first)
        else:
            reply = bound.invoke(messages)
        messages.append(reply)
        assert not reply.invalid_tool_calls, reply.invalid_tool_calls
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            called.append(call["name"])
            result = BY_NAME[call["name"]].invoke(call["args"])
            messages.append(ToolMessage(result, tool_call_id=call["id"]))
    how = "streamed" if is_streamed else "whole"
    return [
        (f"tools that were called, {how}", called),
        (f"each was called once, {how}", set(called) == FUNCTIONS.keys()),
        (f"the answer has their results, {how}", is_answer(reply.content) and reply.content),
        (f"usage, {how}", reply.usage_metadata),
    ]


def agent(model: ChatOpenAI) -> Checks:
    """LangChain's own loop."""
    own = create_agent(model, TOOL_LIST)
    asked = {"messages": [("user", QUESTION)]}
    kinds = [message.type for message in own.invoke(asked)["messages"]]
    answer = own.invoke(asked)["messages"][-1].content
    last = list(own.stream(asked, stream_mode="values"))[-1]["messages"][-1]
    pieces = [piece for piece, _ in own.stream(asked, stream_mode="messages")]
    waited = asyncio.run(own.ainvoke(asked))["messages"][-1]
    return [
        ("an agent's messages", kinds),
        ("an agent's answer", is_answer(answer) and answer),
        ("its answer, step by step", is_answer(last.content)),
        ("its messages, piece by piece", len(pieces) > len(kinds)),
        ("its answer, awaited", is_answer(waited.content)),
    ]


def structured(model: ChatOpenAI) -> Checks:
    """An object of a schema, which LangChain asks for as a call of a named function."""
    (add,) = (tool["function"] for tool in TOOLS if tool["function"]["name"] == "add")
    schema = {"title": "add", "description": add["description"], **add["parameters"]}
    own = model.with_structured_output(schema, method="function_calling")
    found = own.invoke("You must call add.")
    return [("structured output by a named function", found == ARGUMENTS["add"] and found)]


def main() -> None:
    url, name = sys.argv[1:]
    model = ChatOpenAI(
        base_url=url, api_key="none", model=name, stream_usage=True, max_retries=0, seed=7
    )
    conclude(by_hand(model, False) + by_hand(model, True) + agent(model) + structured(model))


if __name__ == "__main__":
    main()
