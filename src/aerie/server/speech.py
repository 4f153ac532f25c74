"""A choice of a chat whose text is parsed: what it says, what it thinks, what it calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aerie.text.calls import Argued, Called, CallParser, Part, Said
from aerie.text.marks import Marks

Delta = dict[str, Any]  # what a chunk adds to a message


@dataclass(eq=False)
class Speech:
    """One choice as it comes."""

    marks: Marks
    parser: CallParser
    most_calls: int | None = None  # calls beyond so many are left out
    calls: list[str] = field(default_factory=list)  # their ids

    def push(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        """What so much more text adds; the tokens are those that were decided with it."""
        return self._deltas(self.parser.push(self.marks.push(text, token_ids)))

    def finish(self) -> list[Delta]:
        """What still waited; called once, last."""
        return self._deltas(self.parser.finish())

    def reason(self, reason: str) -> str:
        """Why the choice ended, in OpenAI's words."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    def _deltas(self, parts: Iterable[Part]) -> list[Delta]:
        return [delta for part in parts if (delta := self._delta(part))]

    def _delta(self, part: Part) -> Delta | None:
        if isinstance(part, Called):
            self.calls.append(f"call_{uuid.uuid4().hex[:24]}")
        if isinstance(part, Called | Argued):
            return self._call(part)
        return {"content" if isinstance(part, Said) else "reasoning_content": part.text}

    def _call(self, part: Called | Argued) -> Delta | None:
        """As OpenAI streams it: the name first, then what the arguments grow by."""
        index = len(self.calls) - 1
        if self.most_calls is not None and index >= self.most_calls:
            return None
        if isinstance(part, Argued):
            return {"tool_calls": [{"index": index, "function": {"arguments": part.text}}]}
        function = {"name": part.name, "arguments": ""}
        named = {"index": index, "id": self.calls[-1], "type": "function", "function": function}
        return {"tool_calls": [named]}


def joined(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The message that the deltas of a whole choice make."""
    texts = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for name in texts.keys() & delta.keys():
            texts[name] += delta[name]
        for entry in delta.get("tool_calls", ()):
            if "id" in entry:
                calls.append({name: entry[name] for name in ("id", "type", "function")})
            else:
                calls[-1]["function"]["arguments"] += entry["function"]["arguments"]
    content = texts["content"] or (None if calls else "")
    message = {"role": "assistant", "content": content, "refusal": None}
    thoughts = texts["reasoning_content"]
    message |= {"reasoning_content": thoughts} if thoughts else {}
    return message | ({"tool_calls": calls} if calls else {})
