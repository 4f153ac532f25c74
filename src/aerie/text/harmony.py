"""Harmony: a conversation as the prompt that gpt-oss was trained on.

The system's message says who the model is, the date and how much it is to think; what clients call
a system prompt, and the tools, are the developer's. Thoughts go back to the model only until an
answer has followed them. Marks and channels are those that `channels.py` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aerie.errors import UsageError
from aerie.text.channels import (
    ASSISTANT,
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL,
    MESSAGE,
    NOTES,
    SPACE,
    START,
    THOUGHTS,
)
from aerie.text.messages import check_objects, plain_messages
from aerie.text.tool_types import namespace_text

EFFORTS = ("low", "medium", "high")
IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
CUTOFF = "2024-06"
_INSTRUCTORS = ("system", "developer")
Message = Mapping[str, object]


@dataclass(frozen=True)
class Setting:
    """What a prompt says beside the conversation."""

    date: str  # YYYY-MM-DD
    effort: str = "medium"

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            known = ", ".join(EFFORTS)
            raise UsageError(f"reasoning_effort is {self.effort!r:.60}, must be one of {known}")


def render_harmony(
    messages: Sequence[Message], tools: Sequence[Message] | None, setting: Setting
) -> str:
    """The prompt of a conversation, open for the assistant; encode it without special tokens.

    Raises UsageError when the messages are malformed, or a tool answers that was not called.
    """
    plain = plain_messages(messages)
    offered = [_function(i, own) for i, own in enumerate(check_objects("tools", tools) or ())]
    others = (i for i, own in enumerate(plain) if own["role"] not in _INSTRUCTORS)
    n_first = next(others, len(plain))
    instructions = "\n\n".join(str(own["content"]) for own in plain[:n_first] if own["content"])
    return "".join(
        [
            _message("system", _system(setting, bool(offered))),
            _developer(instructions, offered),
            *_turns(plain, messages, n_first),
            f"{START}{ASSISTANT}",
        ]
    )


def _message(head: str, text: str, end: str = END) -> str:
    return f"{START}{head}{MESSAGE}{text}{end}"


def _system(setting: Setting, has_tools: bool) -> str:
    channels = f"# Valid channels: {THOUGHTS}, {NOTES}, {FINAL}."
    lines = [
        IDENTITY,
        f"Knowledge cutoff: {CUTOFF}",
        f"Current date: {setting.date}",
        "",
        f"Reasoning: {setting.effort}",
        "",
        f"{channels} Channel must be included for every message.",
    ]
    if has_tools:
        lines.append(f"Calls to these tools must go to the {NOTES} channel: 'functions'.")
    return "\n".join(lines)


def _developer(instructions: str, offered: Sequence[Message]) -> str:
    sections = [f"# Instructions\n\n{instructions}"] if instructions else []
    sections += [f"# Tools\n\n{namespace_text(offered)}"] if offered else []
    return _message("developer", "\n\n".join(sections)) if sections else ""


def _function(index: int, tool: Message) -> Message:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError(f"tools[{index}] is {tool!r:.60}, must have a function with a name")
    return function


def _turns(plain: Sequence[Message], sent: Sequence[Message], n_first: int) -> list[str]:
    """Every message but the first instructions, whose calls are written as they were sent."""
    answered = [i for i, own in enumerate(plain) if own["role"] == ASSISTANT and _is_final(own)]
    last_answer = answered[-1] if answered else -1
    called: dict[object, str] = {}  # names of tools by the ids of their calls
    parts = []
    for index in range(n_first, len(plain)):
        own, role = plain[index], plain[index]["role"]
        if role == ASSISTANT:
            parts += _answer(own, sent[index], is_thought_kept=index > last_answer)
            called |= {call.get("id"): name for call, name in _calls(sent[index])}
        elif role == "tool":
            name = _tool_name(f"messages[{index}]", own, called)
            parts.append(_message(f"{SPACE}{name} to={ASSISTANT}{CHANNEL}{NOTES}", _text(own)))
        elif role in _INSTRUCTORS:
            parts.append(_message("developer", f"# Instructions\n\n{_text(own)}"))
        else:
            parts.append(_message(str(role), _text(own)))
    return parts


def _is_final(message: Message) -> bool:
    return bool(message["content"]) and not message.get("tool_calls")


def _text(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else ""


def _answer(message: Message, sent: Message, is_thought_kept: bool) -> list[str]:
    """Thoughts, then what was said: to the user, or before calls, then the calls."""
    head = f"{ASSISTANT}{CHANNEL}"
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    thoughts = thoughts or message.get("thinking")
    calls = _calls(sent)
    parts = []
    if is_thought_kept and isinstance(thoughts, str):
        parts.append(_message(f"{head}{THOUGHTS}", thoughts))
    if text := _text(message):
        parts.append(_message(f"{head}{NOTES if calls else FINAL}", text))
    for call, name in calls:
        to = f"{ASSISTANT} to={SPACE}{name}{CHANNEL}{NOTES} {CONSTRAIN}json"
        parts.append(_message(to, _arguments(call), CALL))
    return parts


def _calls(sent: Message) -> list[tuple[Message, str]]:
    """The calls of a checked message, with their names, as the client sent them."""
    calls = sent.get("tool_calls") or []
    assert isinstance(calls, list)
    return [(call, call["function"]["name"]) for call in calls]


def _arguments(call: Message) -> str:
    """In the model's own spelling: what it wrote is what it is shown again."""
    function = call["function"]
    assert isinstance(function, Mapping)
    arguments = function.get("arguments") or "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _tool_name(place: str, message: Message, called: Mapping[object, str]) -> str:
    """Of the call that a message answers: by its id, by its name, or the only one there was."""
    name = called.get(message.get("tool_call_id"), message.get("name"))
    if name is None and len(set(called.values())) == 1:
        (name,) = set(called.values())
    if not isinstance(name, str) or not name:
        raise UsageError(
            f"{place}.tool_call_id is {message.get('tool_call_id')!r:.60}, which no call before it "
            "has: send the assistant's message with its tool_calls first"
        )
    return name.removeprefix(SPACE)
