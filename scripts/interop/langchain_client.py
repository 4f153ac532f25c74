"""LangChain against a server: completions, chats, streams, batches, awaited ones too.

python langchain_client.py URL MODEL
"""

from __future__ import annotations

import asyncio
import sys

from checks import Checks, conclude
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

PROMPT = "def read_lines(path):\n"
MESSAGES = [SystemMessage("# Python 3\n"), HumanMessage("class Stack:\n")]


def completions(url: str, model: str) -> Checks:
    llm = OpenAI(base_url=url, api_key="none", model=model, max_tokens=32, temperature=0.8, seed=7)
    whole = llm.invoke(PROMPT)
    both = llm.batch([PROMPT, "x ="])
    return [
        ("a completion", whole),
        ("its stream is the same text", "".join(llm.stream(PROMPT)) == whole),
        ("of a batch, too", both[0] == whole and len(both) == 2),
        ("a stop string ends it", "\n" not in llm.invoke(PROMPT, stop=["\n"])),
    ]


def chats(url: str, model: str) -> Checks:
    llm = chat_model(url, model)
    whole = llm.invoke(MESSAGES)
    chunks = list(llm.stream(MESSAGES))
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    chain = ChatPromptTemplate.from_messages([("user", "{code}")]) | llm | StrOutputParser()
    return [
        ("a chat", whole.content),
        ("its stream is the same text", "".join(c.content for c in chunks) == whole.content),
        ("its stream closes with usage", usage and usage[-1] == whole.usage_metadata),
        ("a chain of prompt, model and parser", chain.invoke({"code": PROMPT})),
    ]


async def awaited(url: str, model: str) -> Checks:
    llm = chat_model(url, model)
    whole = await llm.ainvoke(MESSAGES)
    text = "".join([chunk.content async for chunk in llm.astream(MESSAGES)])
    many = await llm.abatch([MESSAGES] * 4)
    return [
        ("an awaited chat", whole.content),
        ("its stream is the same text", text == whole.content),
        ("four at once are the same text", {one.content for one in many} == {whole.content}),
    ]


def chat_model(url: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url,
        api_key="none",
        model=model,
        max_tokens=32,
        temperature=0.8,
        seed=7,
        stream_usage=True,
        max_retries=0,
    )


def main() -> None:
    url, model = sys.argv[1:]
    results = completions(url, model) + chats(url, model) + asyncio.run(awaited(url, model))
    conclude(results)


if __name__ == "__main__":
    main()
