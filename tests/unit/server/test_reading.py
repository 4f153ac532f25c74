"""Texts to ids: too long is refused early, what waits is bounded, what was left is dropped."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.errors import UsageError
from aerie.server import reading
from aerie.server.problems import ApiError
from aerie.server.reading import MOST_WAITING, PIECE, SHORT, Reader
from tests.unit.text.vocabularies import tokenizer as own_tokenizer


@dataclass
class Words:
    """A tokenizer of words that notes what it is given, and waits where it is told to."""

    gate: threading.Event = field(default_factory=threading.Event)
    encoded: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)

    def least_tokens(self, n_bytes: int) -> int:
        return n_bytes // 1000

    def count(self, text: str) -> int:
        self.counted.append(len(text))
        return len(text.split())

    def encode(self, text: str, is_special: bool) -> list[int]:
        self.encoded.append(len(text))
        assert self.gate.wait(20)
        return [1] * len(text.split())


def facts_of(tokenizer: Any, context: int) -> Any:
    return SimpleNamespace(tokenizer=tokenizer, limits=SimpleNamespace(context=context))


def run(test: Callable[[Reader], Awaitable[None]]) -> None:
    async def scenario() -> None:
        reader = Reader()
        await test(reader)
        assert reader.waiting == 0

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("n_times", [1, 300, 3000])
def test_ids_are_the_tokenizers(n_times: int) -> None:
    tokenizer = own_tokenizer("byte_level")
    text = "naïve café, 中文字符 <|turn|> " * n_times

    async def scenario(reader: Reader) -> None:
        for is_special in (True, False):
            found = await reader.encode(facts_of(tokenizer, 10**6), text, "prompt", is_special)
            assert found == tokenizer.encode(text, is_special)

    run(scenario)


@pytest.mark.parametrize(
    ("text", "words", "n_counted"),
    [
        ("a" * 600_000, "at least 600", 0),  # by its bytes
        ("a " * 200_000, "more than", 1),  # by the first piece
        ("a " * 1_000, "has 1000", 0),  # by its ids
        ("a" * 40_000 + " b" * 540, "has 541", 1),  # counted, and encoded all the same
    ],
    ids=["bytes", "pieces", "ids", "all"],
)
def test_what_is_too_long_is_refused_as_early_as_can_be(
    text: str, words: str, n_counted: int
) -> None:
    tokenizer = Words()
    tokenizer.gate.set()

    async def scenario(reader: Reader) -> None:
        with pytest.raises(ApiError, match=words) as refused:
            await reader.encode(facts_of(tokenizer, 500), text, "prompt")
        error = refused.value
        assert (error.status, error.param) == (400, "prompt")
        assert error.code == "context_length_exceeded"
        assert "maximum context length is 500 tokens" in str(error)

    run(scenario)
    assert len(tokenizer.counted) == n_counted and all(n <= PIECE for n in tokenizer.counted)
    assert bool(tokenizer.encoded) is ("has" in words and "least" not in words)


def test_a_lone_surrogate_is_refused() -> None:
    async def scenario(reader: Reader) -> None:
        with pytest.raises(UsageError, match="prompt has a lone surrogate"):
            await reader.encode(facts_of(Words(), 500), "\ud800", "prompt")

    run(scenario)


def test_who_leaves_before_his_turn_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_WAITING", 5 * SHORT)
    tokenizer = Words()
    facts = facts_of(tokenizer, 10**6)
    text = "a" * (2 * SHORT)

    async def scenario(reader: Reader) -> None:
        first = asyncio.create_task(reader.encode(facts, text, "prompt"))
        second = asyncio.create_task(reader.encode(facts, text, "prompt"))
        while not tokenizer.encoded:
            await asyncio.sleep(0.001)
        with pytest.raises(ApiError, match="retry later") as full:
            await reader.encode(facts, text, "prompt")
        assert full.value.status == 429 and full.value.headers["retry-after"]
        # A short text needs no turn.
        short = asyncio.create_task(reader.encode(facts, "a b", "prompt"))
        while len(tokenizer.encoded) < 2:
            await asyncio.sleep(0.001)
        second.cancel()
        await asyncio.sleep(0)
        tokenizer.gate.set()
        assert await short == [1, 1] and await first == [1]
        with pytest.raises(asyncio.CancelledError):
            await second

    run(scenario)
    assert sorted(tokenizer.encoded) == [3, len(text)]


def test_the_bound_holds_several_of_the_largest_bodies() -> None:
    assert MOST_WAITING >= 2 * 4 * 1024 * 1024
