"""Calls of tools in a model's text: what a parser tells of it, and which JSON is a call."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn, Protocol


@dataclass(frozen=True)
class Said:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Text of a model to itself."""

    text: str


@dataclass(frozen=True)
class Called:
    """A call begins; the arguments that follow are its own."""

    name: str


@dataclass(frozen=True)
class Argued:
    """More of the last call's arguments: joined, they are the JSON object that the model wrote."""

    text: str


Part = Said | Thought | Called | Argued


class CallParser(Protocol):
    """Reads one text as it comes.

    What the parts of all pushes and of `finish` say, joined, depends on the text alone, not on
    where it was cut. A call is told when it is whole; what turns out to be none is said.
    """

    def push(self, text: str) -> list[Part]:
        """What is certain after so much more text."""
        ...

    def finish(self) -> list[Part]:
        """What still waited; called once, last."""
        ...


def _refuse_constant(name: str) -> NoReturn:
    """NaN and infinities, which Python's reader takes, are no JSON."""
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_BLANK = re.compile(r"[ \t\n\r]*")
_ARGUMENTS = ("arguments", "parameters")
# A call begins with one of these; an object that begins otherwise is an answer.
_KEYS = ("name", *_ARGUMENTS, "type", "id", "function")
MOST_HEAD = 200  # characters of an object in which its first key is looked for


def read_calls(text: str, names: Collection[str]) -> list[Part]:
    """The calls that a JSON object, or a list of them, asks for; none unless all are calls."""
    try:
        is_list = isinstance(_DECODER.decode(text), list)
        texts = _entries(text) if is_list else [text]
        calls = [_read_call(entry, names) for entry in texts]
    except (ValueError, RecursionError):
        return []
    return [part for call in calls for part in call] if all(calls) else []


def object_text(text: str) -> str | None:
    """A JSON object's text without the blanks around it; None where that is something else."""
    text = text.strip()
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(found, dict) else None


def may_become_call(text: str) -> bool:
    """Whether an object or list that has begun may still be a call, by its first key."""
    head = text[:MOST_HEAD].lstrip("[ \t\n\r")
    if not head.startswith("{"):
        return not head
    head = head[1:].lstrip()
    key, quote, _ = head[1:].partition('"')
    is_known = key in _KEYS if quote else any(known.startswith(key) for known in _KEYS)
    return not head or (head.startswith('"') and is_known)


def _read_call(text: str, names: Collection[str]) -> list[Part]:
    """An object with an offered name and its arguments, which keep their own spelling.

    The text is known to be JSON.
    """
    members = _members(text)
    name = json.loads(members.get("name", "null"))
    given = next((members[key] for key in _ARGUMENTS if key in members), "")
    if given.startswith('"'):  # some write the object into a string
        given = str(json.loads(given))
    arguments = object_text(given)
    if arguments is None or not isinstance(name, str) or name not in names:
        return []
    return [Called(name), Argued(arguments)]


def _members(text: str) -> dict[str, str]:
    """The texts of an object's values, by key; raises ValueError where it is none."""
    if not text.startswith("{"):
        raise ValueError("no object")
    found: dict[str, str] = {}
    at = _blank_end(text, 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _blank_end(text, _blank_end(text, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, start)
        found[str(key)] = text[start:end]
        at = _next_entry(text, end)
    return found


def _entries(text: str) -> list[str]:
    """The texts of a list's entries."""
    found, at = [], _blank_end(text, 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        found.append(text[at:end])
        at = _next_entry(text, end)
    return found


def _next_entry(text: str, at: int) -> int:
    """Behind the comma, or at the bracket that closes all."""
    at = _blank_end(text, at)
    return _blank_end(text, at + 1) if text[at] == "," else at


def _blank_end(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None  # it matches nothing, too
    return found.end()


class Span:
    """Where a JSON object or list ends that comes in pieces: where its brackets are even."""

    _SIGNS = re.compile(r'["\\{}\[\]]')

    def __init__(self) -> None:
        self._depth = 0
        self._at = 0  # looked at so far
        self._is_text = False
        self._end: int | None = None

    def end(self, text: str, start: int) -> int | None:
        """Behind its last bracket; `text` only grows, and the object begins at `start`."""
        self._at = max(self._at, start)
        while self._end is None and (found := self._SIGNS.search(text, self._at)):
            sign, self._at = found.group(), found.end()
            if sign == "\\":
                if self._at == len(text):
                    self._at = found.start()  # what it escapes is still to come
                    return None
                self._at += 1
            elif sign == '"':
                self._is_text = not self._is_text
            elif not self._is_text:
                self._depth += 1 if sign in "{[" else -1
                if self._depth == 0:
                    self._end = self._at
        if self._end is None:
            self._at = max(self._at, len(text))
        return self._end
