"""Harmony's messages in a model's text: thoughts, text for the user, and calls, channel by channel.

    <|start|>assistant<|channel|>analysis<|message|>TEXT<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

The prompt ends with `<|start|>assistant`, so the first head is without it. Nothing is dropped but
the marks and heads of messages that were understood: a message for another reader, of an unknown
channel, or a call that is none is content, whole and as it was written; and where something else
stands than the head of a message, the rest of the text is content.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from aerie.text.call_parsers import Steps, undecided
from aerie.text.calls import Argued, Called, Part, Said, Thought, object_text

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
ASSISTANT = "assistant"
THOUGHTS, NOTES, FINAL = "analysis", "commentary", "final"
SPACE = "functions."  # where the names of tools are

_TO = r" to=(?P<{}>[^\s<]+) ?"
_TYPE = rf"(?: ?{re.escape(CONSTRAIN)} ?| )[\w.+/-]+"  # of what a message holds: json, code
_HEAD = re.compile(
    rf"(?:{re.escape(START)}{ASSISTANT})?(?:{_TO.format('first')})?"
    rf"(?:{re.escape(CHANNEL)}(?P<channel>\w+)(?:{_TO.format('second')})?(?:{_TYPE})? ?)?"
)
_OPENINGS = (f"{START}{ASSISTANT}", CHANNEL, MESSAGE, " to=")
_MOST_HEAD = 256  # characters; a longer one is text


class Kind(Enum):
    """What becomes of a message's text."""

    THOUGHT = "thought"
    SAID = "said"
    CALL = "call"
    RAW = "raw"  # content, with its head and its end


@dataclass(frozen=True)
class Head:
    """Where a message is for, and how that was written."""

    text: str  # with the mark behind it
    kind: Kind
    name: str = ""  # of the tool that is called


NO_HEAD = Head("", Kind.RAW)


class ChannelCalls(Steps):
    """Messages of one answer."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names
        self._head: Head | None = None  # of the message whose text comes; None: a head is next
        self._arguments = ""  # of a call that has begun
        self._is_raw = False  # all that follows

    def finish(self) -> list[Part]:
        """What still waited; an answer may end without its last mark."""
        return [*self._take(is_end=True), *self._close("")]

    def _step(self, is_end: bool) -> list[Part] | None:
        if self._is_raw:
            said, self._held = self._held, ""
            return [Said(said)]
        return self._begin(is_end) if self._head is None else self._body(is_end)

    def _begin(self, is_end: bool) -> list[Part] | None:
        head = self._find_head(self._held, is_end)
        if head is None:
            return None
        if head is NO_HEAD:
            self._is_raw = True
            return []
        self._head, self._held = head, self._held[len(head.text) :]
        return [Said(head.text)] if head.kind is Kind.RAW else []

    def _body(self, is_end: bool) -> list[Part] | None:
        held = self._held
        at, mark = _first(held, (*ENDS, START, CHANNEL))
        if at < 0:
            n_held = 0 if is_end else undecided(held, MARKS)
            if n_held == len(held):
                return None
            self._held = held[len(held) - n_held :]
            return self._tell(held[: len(held) - n_held])
        if at > 0:
            self._held = held[at:]
            return self._tell(held[:at])
        if mark in ENDS:
            self._held = held[len(mark) :]
            return self._close(mark)
        # A head here begins a message although this one has no end; anything else is text.
        head = self._find_head(held, is_end)
        if head is None:
            return None
        if head is not NO_HEAD:
            return self._close("")
        self._held = held[len(mark) :]
        return self._tell(mark)

    def _find_head(self, text: str, is_end: bool) -> Head | None:
        """The head that a text begins with, or that it has none; None: it takes more to tell."""
        at, mark = _first(text, (MESSAGE, *ENDS))
        if at >= 0:
            found = _HEAD.fullmatch(text[:at]) if mark == MESSAGE and at <= _MOST_HEAD else None
            return NO_HEAD if found is None else self._read_head(found)
        n_decided = len(text) - undecided(text, MARKS)
        may_begin = any(opening.startswith(text[: len(opening)]) for opening in _OPENINGS)
        return NO_HEAD if is_end or n_decided > _MOST_HEAD or not may_begin else None

    def _read_head(self, found: re.Match[str]) -> Head:
        text, channel = found.group() + MESSAGE, found.group("channel")
        readers = [to for to in (found.group("first"), found.group("second")) if to is not None]
        if not readers:
            kinds = {THOUGHTS: Kind.THOUGHT, NOTES: Kind.SAID, FINAL: Kind.SAID, None: Kind.SAID}
            return Head(text, kinds.get(channel, Kind.RAW))
        name = readers[0].removeprefix(SPACE)
        is_call = len(readers) == 1 and readers[0].startswith(SPACE) and name in self._names
        return Head(text, Kind.CALL, name) if is_call else Head(text, Kind.RAW)

    def _tell(self, text: str) -> list[Part]:
        assert self._head is not None
        if self._head.kind is Kind.CALL:
            self._arguments += text
            return []
        return [Thought(text) if self._head.kind is Kind.THOUGHT else Said(text)]

    def _close(self, mark: str) -> list[Part]:
        """The end of a message, with or without a mark: a call is told, or what is none said."""
        head, text = self._head, self._arguments
        self._head, self._arguments = None, ""
        if head is None or head.kind in (Kind.THOUGHT, Kind.SAID):
            return []
        if head.kind is Kind.RAW:
            return [Said(mark)] if mark else []
        arguments = object_text(text)
        if arguments is None:
            return [Said(head.text + text + mark)]
        return [Called(head.name), Argued(arguments)]


class Unread:
    """No parser: the text with all its marks."""

    def __init__(self, names: Collection[str]) -> None:
        pass

    def push(self, text: str) -> list[Part]:
        """As it came."""
        return [Said(text)] if text else []

    def finish(self) -> list[Part]:
        """Nothing waits."""
        return []


def _first(text: str, marks: Collection[str]) -> tuple[int, str]:
    """Where the first mark is, and which; -1: there is none."""
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(found, default=(-1, ""))
