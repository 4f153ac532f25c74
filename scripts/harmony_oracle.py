"""What the openai-harmony package makes of the cases that our rendering is held to.

    TIKTOKEN_ENCODINGS_BASE=FOLDER python -m scripts.harmony_oracle > FILE

It needs the package (`pip install openai-harmony`) and, in FOLDER, the vocabulary
o200k_base.tiktoken: the package checks its hash, and downloads it otherwise. Tests read what this
wrote and need neither.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

DATE = "2025-06-28"
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather.\nOf a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where, e.g. Zürich", "title": "City"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "celsius"},
            "days": {"type": "array", "items": {"type": "integer"}, "examples": ["today", 1]},
            "note": {"type": ["string", "null"], "default": None},
            "deep": {
                "type": "object",
                "description": "Of the model.",
                "properties": {"a": {"type": "number", "default": 1.5}, "b": {"type": "array"}},
                "required": ["a"],
            },
            "place": {
                "description": "Another one.",
                "oneOf": [
                    {"type": "string", "description": "By name.", "nullable": True},
                    {"type": "integer", "description": "By number.", "default": 1},
                ],
            },
            "free": {},
        },
        "required": ["city", "place"],
    },
}
TOOLS = [{"type": "function", "function": own} for own in (WEATHER, {"name": "now"})]
USER = {"role": "user", "content": "How is it? ☀"}
CALL = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "I need it.",
    "tool_calls": [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city":"Z"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": '{"sun": true}'}
ANSWER = {"role": "assistant", "content": "Sunny.", "reasoning_content": "Easy."}
SYSTEM = {"role": "system", "content": "Be brief."}
CASES: dict[str, dict[str, Any]] = {
    "question": {"messages": [USER], "tools": None, "effort": "low"},
    "instructed": {"messages": [SYSTEM, USER], "tools": None, "effort": "medium"},
    "offered": {"messages": [USER], "tools": TOOLS, "effort": "high"},
    "called": {"messages": [SYSTEM, USER, CALL, RESULT], "tools": TOOLS, "effort": "medium"},
    "said first": {
        "messages": [USER, {**CALL, "content": "I look."}, RESULT],
        "tools": TOOLS,
        "effort": "medium",
    },
    # Thoughts before the last answer are gone.
    "answered": {
        "messages": [USER, CALL, RESULT, ANSWER, USER, CALL, RESULT],
        "tools": None,
        "effort": "medium",
    },
}


def package_text(case: dict[str, Any]) -> str:
    """The prompt of a case, by the package."""
    harmony: Any = importlib.import_module("openai_harmony")
    system = harmony.SystemContent.new().with_conversation_start_date(DATE)
    system = system.with_reasoning_effort(harmony.ReasoningEffort(case["effort"].capitalize()))
    developer, messages = harmony.DeveloperContent.new(), list(case["messages"])
    parts = [harmony.Message.from_role_and_content(harmony.Role.SYSTEM, system)]
    if messages[0]["role"] == "system":
        developer = developer.with_instructions(messages.pop(0)["content"])
    if case["tools"]:
        tools = [own["function"] for own in case["tools"]]
        described = [
            harmony.ToolDescription.new(
                own["name"], own.get("description", ""), own.get("parameters")
            )
            for own in tools
        ]
        developer = developer.with_function_tools(described)
    if case["tools"] or len(messages) < len(case["messages"]):
        parts.append(harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, developer))
    encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    conversation = harmony.Conversation.from_messages([*parts, *_turns(harmony, messages)])
    # The package drops thoughts before the first answer only, its documentation before the last.
    whole = harmony.RenderConversationConfig(auto_drop_analysis=False)
    ids = encoding.render_conversation_for_completion(conversation, harmony.Role.ASSISTANT, whole)
    return str(encoding.decode(ids))


def _turns(harmony: Any, messages: Sequence[dict[str, Any]]) -> list[Any]:
    make, role = harmony.Message.from_role_and_content, harmony.Role.ASSISTANT
    parts = []
    last = max((i for i, own in enumerate(messages) if own == ANSWER), default=-1)
    for index, own in enumerate(messages):
        calls = own.get("tool_calls") or []
        if own["role"] == "user":
            parts.append(make(harmony.Role.USER, own["content"]))
        if own["role"] == "tool":
            author = harmony.Author.new(harmony.Role.TOOL, "functions.weather")
            told = harmony.Message.from_author_and_content(author, own["content"])
            parts.append(told.with_recipient("assistant").with_channel("commentary"))
        if own["role"] == "assistant":
            if index > last:
                parts.append(make(role, own["reasoning_content"]).with_channel("analysis"))
            if own["content"]:
                channel = "commentary" if calls else "final"
                parts.append(make(role, own["content"]).with_channel(channel))
        for call in calls:
            sent = make(role, call["function"]["arguments"]).with_channel("commentary")
            to = f"functions.{call['function']['name']}"
            parts.append(sent.with_recipient(to).with_content_type("<|constrain|>json"))
    return parts


def main() -> None:
    version = importlib.metadata.version("openai-harmony")
    texts = {name: package_text(case) for name, case in CASES.items()}
    found = {"openai-harmony": version, "date": DATE, "texts": texts}
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
