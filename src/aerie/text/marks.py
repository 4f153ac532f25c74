"""Marks: special tokens put back into a text that was decoded without them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from aerie.text.stream import TextStream
from aerie.text.tokenizer import Tokenizer


class Marks:
    """One text as it comes; what it has beside its marks, stop strings decided before."""

    def __init__(self, tokenizer: Tokenizer, marks: Iterable[str]) -> None:
        by_id = {tokenizer.backend.token_to_id(mark): mark for mark in marks}
        self._marks = {own: by_id[own] for own in by_id.keys() & tokenizer.special_ids}
        self._stream = TextStream(tokenizer)
        self._n_decoded = 0  # characters of the tokens so far; some of them may still be held back
        self._n_told = 0
        self._waiting: deque[tuple[int, str]] = deque()  # marks, and the characters before each

    def push(self, text: str, token_ids: Sequence[int]) -> str:
        """The next text with its marks; those behind text that is held back follow it."""
        if not self._marks:
            return text
        for token_id in token_ids:
            if token_id in self._marks:
                self._waiting.append((self._n_decoded, self._marks[token_id]))
            else:
                self._n_decoded += len(self._stream.push([token_id]))
        parts = []
        while self._waiting and self._waiting[0][0] <= self._n_told + len(text):
            place, mark = self._waiting.popleft()
            n_before = place - self._n_told
            parts += [text[:n_before], mark]
            text, self._n_told = text[n_before:], place
        self._n_told += len(text)
        return "".join([*parts, text])
