"""Stops: find stop strings in a text that arrives in pieces, and cut before the first one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from aerie.errors import UsageError
from aerie.text.tokenizer import refuse_surrogates

MAX_STOPS = 64
MAX_STOP_CHARS = 256


@dataclass(frozen=True)
class StopResult:
    """What one push released, and the stop string that ended the text, if one did."""

    emit: str
    matched: str | None


class StopStrings:
    """A matcher over one streamed text.

    A match is final as soon as it is complete; of several that one push completes, the one that
    begins first wins, and of those the longest. Whatever could still become a stop string is held
    back, so no character of one is ever emitted. Both rules look at the text and at where pushes
    end: push one token at a time, and the outcome depends on the tokens alone.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        _check(stops)
        self._stops = sorted(set(stops))
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matched

    def push(self, text: str) -> StopResult:
        """Take the next text; return what is certainly no part of a stop string, or the match."""
        if self._matched is not None:
            raise UsageError(
                f"the text already ended at stop string {self._matched!r}; push nothing after it"
            )
        n_old = len(self._held)
        self._held += text
        if (found := self._find(n_old)) is not None:
            start, self._matched = found
            return self._release(start, is_end=True)
        return self._release(self._first_candidate())

    def finish(self) -> str:
        """The text held back, when no more follows; empty after a match."""
        return self._release(len(self._held)).emit

    def _find(self, n_old: int) -> tuple[int, str] | None:
        """Where the winning match begins. It ends beyond the old text, or it was found before."""
        found = []
        for stop in self._stops:
            start = self._held.find(stop, max(0, n_old - len(stop) + 1))
            if start >= 0:
                found.append((start, -len(stop), stop))
        if not found:
            return None
        start, _, stop = min(found)
        return start, stop

    def _first_candidate(self) -> int:
        """Where the earliest suffix begins that is the beginning of some stop string.

        More text never moves it back, so the scan costs O(1) per character, amortised.
        """
        for start in range(len(self._held)):
            suffix = self._held[start : start + MAX_STOP_CHARS + 1]
            # In sorted order, the strings that begin with the suffix follow it directly.
            place = bisect_left(self._stops, suffix)
            if place < len(self._stops) and self._stops[place].startswith(suffix):
                return start
        return len(self._held)

    def _release(self, n_chars: int, is_end: bool = False) -> StopResult:
        emit = self._held[:n_chars]
        self._held = "" if is_end else self._held[n_chars:]
        return StopResult(emit, self._matched)


def _check(stops: Sequence[str]) -> None:
    if isinstance(stops, str):
        raise UsageError(f"stops is the string {stops!r:.60}; pass a list: [{stops!r:.60}]")
    if len(stops) > MAX_STOPS:
        raise UsageError(f"{len(stops)} stop strings, limit {MAX_STOPS}; drop some")
    for stop in stops:
        if not isinstance(stop, str):
            raise UsageError(f"stop string {stop!r:.60} is a {type(stop).__name__}; pass text")
        if not stop:
            raise UsageError("an empty stop string would match everywhere; leave it out")
        if len(stop) > MAX_STOP_CHARS:
            raise UsageError(
                f"stop string {stop!r:.60} has {len(stop)} characters, limit {MAX_STOP_CHARS}"
            )
        refuse_surrogates(stop, f"stop string {stop!r:.60}")
