"""Parsers of calls: JSON between marks, or at the beginning of a text."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from aerie.text.calls import (
    MOST_HEAD,
    Part,
    Said,
    Span,
    may_become_call,
    read_calls,
)

BETWEEN = re.compile(r"[\s;]*")  # calls of JSON that no mark begins


class Steps(ABC):
    """A text that is decided step by step; what a step leaves undecided is held."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Part]:
        """What is certain after so much more text."""
        self._held += text
        return self._take(is_end=False)

    def _take(self, is_end: bool) -> list[Part]:
        found: list[Part] = []
        while self._held and (step := self._step(is_end)) is not None:
            found += step
        return found

    @abstractmethod
    def _step(self, is_end: bool) -> list[Part] | None:
        """Decide something of what is held; None: it takes more text to tell.

        What is decided must be the same for every text that begins so.
        """


@dataclass(frozen=True)
class JsonForm:
    """Where a text may have a call, and what stands around it."""

    begin: str = ""  # the mark before a call; none: there is no such mark
    end: str = ""  # the mark behind it
    is_bare: bool = False  # a call may begin the text, or follow another one, without a mark


class JsonCalls(Steps):
    """An object with a name and arguments for each call. Blanks around calls are dropped."""

    def __init__(self, form: JsonForm, names: Collection[str]) -> None:
        super().__init__()
        self._form = form
        self._names = names
        self._span: Span | None = None  # of the call that `_held` may begin with
        self._may_begin = form.is_bare  # a call, here and without a mark
        self._blank = ""  # said, unless a call follows
        self._is_behind_call = False

    def finish(self) -> list[Part]:
        """What still waited."""
        found = self._take(is_end=True)
        return [*found, Said(self._blank)] if self._blank else found

    def _step(self, is_end: bool) -> list[Part] | None:
        return self._call(is_end) if self._span else self._text(is_end)

    def _text(self, is_end: bool) -> list[Part] | None:
        """Outside of calls."""
        begin = self._form.begin
        if self._may_begin:
            lead = self._held[: _behind_blank(self._held)]
            rest = self._held[len(lead) :]
            if rest[:1] in ("{", "[") or (begin and rest.startswith(begin)):
                self._held, self._span = rest, Span()
                self._blank += lead
                return []
            if begin.startswith(rest) and not is_end:
                return None
            self._may_begin = False
        held = self._held
        at = held.find(begin) if begin else -1
        if at >= 0:
            self._held, self._span = held[at:], Span()
            return self._say(held[:at])
        n_held = 0 if is_end else undecided(held, (begin,))
        if n_held == len(held):
            return None
        self._held = held[len(held) - n_held :]
        return self._say(held[: len(held) - n_held])

    def _call(self, is_end: bool) -> list[Part] | None:
        """From where a call may begin."""
        held, form, span = self._held, self._form, self._span
        assert span is not None
        is_marked = bool(form.begin) and held.startswith(form.begin)
        start = _behind_blank(held, len(form.begin) if is_marked else 0)
        if start == len(held) and not is_end:
            return None
        head = held[start : start + MOST_HEAD]
        if head[:1] not in ("{", "[") or not may_become_call(head):
            return self._no_call(is_marked)
        end = span.end(held, start)
        if end is None:
            return self._no_call(is_marked) if is_end else None
        behind = end
        if is_marked and form.end:
            behind = _behind_blank(held, end)
            rest = held[behind : behind + len(form.end)]
            if rest != form.end:
                if not form.end.startswith(rest):
                    return self._no_call(is_marked)
                if not is_end:
                    return None
            behind += len(rest)
        calls = read_calls(held[start:end], self._names)
        if not calls:
            return self._no_call(is_marked)
        self._held, self._span, self._blank = held[behind:], None, ""
        self._may_begin, self._is_behind_call = form.is_bare, True
        return calls

    def _no_call(self, is_marked: bool) -> list[Part]:
        """The mark is text, and what follows it is looked at again."""
        self._span, self._may_begin = None, False
        if not is_marked:
            return []
        begin = self._form.begin
        self._held = self._held[len(begin) :]
        return self._say(begin)

    def _say(self, text: str) -> list[Part]:
        text = self._blank + text
        if self._is_behind_call:
            text = text.lstrip()
        said = text.rstrip()
        self._blank = text[len(said) :]
        if said:
            self._is_behind_call = False
        return [Said(said)] if said else []


def undecided(text: str, marks: Collection[str]) -> int:
    """Characters at the end of a text that may be the beginning of a mark."""
    longest = max(map(len, marks), default=0)
    for n_held in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-n_held:]) for mark in marks):
            return n_held
    return 0


def _behind_blank(text: str, at: int = 0) -> int:
    found = BETWEEN.match(text, at)
    assert found is not None  # it matches nothing, too
    return found.end()
