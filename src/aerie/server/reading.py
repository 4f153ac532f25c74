"""From text to ids: refused by its length, off the event loop, bounded, unless its client left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from aerie.server.problems import RETRY_LATER, ApiError
from aerie.server.samples import Facts
from aerie.text.tokenizer import Tokenizer, refuse_surrogates

Found = TypeVar("Found")
SHORT = 16 * 1024  # characters; some ten milliseconds, which need no turn
PIECE = 64 * 1024  # characters that are counted at a time
# Bytes a token; a text that has no more of them than the context is encoded without counting.
USUAL_BYTES = 4
CUT_TOKENS = 64  # that a cut between two pieces may add, and far more than it does
MOST_WAITING = 16 * 1024 * 1024  # characters, of all long texts that wait or are encoded


class Reader:
    """Encodes texts, the long ones one at a time in a thread of their own.

    A text that has too many tokens is refused before it is encoded: by its bytes where the
    vocabulary allows it, else by counting pieces of it until there are too many.
    """

    def __init__(self) -> None:
        self.waiting = 0  # characters
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")

    async def encode(
        self, facts: Facts, text: str, param: str, is_special: bool = True
    ) -> list[int]:
        """The ids of a text that fits into the context. Cancelled before its turn it is free."""
        tokenizer, most = facts.tokenizer, facts.limits.context
        refuse_surrogates(text, param)
        n_bytes = len(text.encode())
        least = tokenizer.least_tokens(n_bytes)
        if least >= most:
            raise too_long(f"at least {least}", most, param)
        if len(text) <= SHORT:
            ids = await asyncio.to_thread(tokenizer.encode, text, is_special)
        else:
            with self._room(len(text), param):
                if n_bytes > USUAL_BYTES * most:
                    await self._refuse_long(tokenizer, most, text, param)
                ids = await self._in_turn(tokenizer.encode, text, is_special)
        if len(ids) >= most:
            raise too_long(str(len(ids)), most, param)
        return ids

    @contextmanager
    def _room(self, n_characters: int, param: str) -> Iterator[None]:
        if self.waiting + n_characters > MOST_WAITING:
            message = f"{self.waiting} characters wait to be tokenised, the limit is {MOST_WAITING}"
            raise ApiError(429, f"{message}: retry later", param, headers=RETRY_LATER)
        self.waiting += n_characters
        try:
            yield
        finally:
            self.waiting -= n_characters

    async def _refuse_long(self, tokenizer: Tokenizer, most: int, text: str, param: str) -> None:
        found = 0
        for start in range(0, len(text), PIECE):
            found += await self._in_turn(tokenizer.count, text[start : start + PIECE]) - CUT_TOKENS
            if found >= most:
                raise too_long(f"more than {found}", most, param)

    async def _in_turn(self, work: Callable[..., Found], *arguments: object) -> Found:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *arguments)


def too_long(n_tokens: str, most: int, param: str) -> ApiError:
    """What can never be served, in the words that clients look for."""
    return ApiError(
        400,
        f"this model's maximum context length is {most} tokens, {param} has {n_tokens}: shorten it",
        param,
        "context_length_exceeded",
    )
