"""Chunks of a stream: what they say about usage, token by token."""

from itertools import chain
from typing import Any

from aerie.api import Completion
from aerie.requests.params import SamplingParams
from aerie.requests.request import Statistics
from aerie.server.answers import CHAT, COMPLETION, Answer, Form
from aerie.server.fields import StreamOptions
from aerie.server.samples import Ask, Piece
from aerie.server.sglang import SglangAnswer

ASKS = (Ask((1, 2, 3), SamplingParams(), 0), Ask((4, 5), SamplingParams(), 0))
# The second piece of the first choice ends within a character, so there is nothing to show.
PIECES = (
    Piece(0, "a", (10, 11)),
    Piece(1, "x", (20,)),
    Piece(0, "", (12,)),
    Piece(0, "b", (13,)),
    Piece(1, "y", (21, 22)),
)
ENDED = (
    Completion("ab", (10, 11, 12, 13), "length", 0, Statistics()),
    Completion("xy", (20, 21, 22), "stop", 0, Statistics()),
)


def streamed(form: Form, **options: bool) -> list[dict[str, Any]]:
    tokenizer: Any = None  # only logprobs need one
    answer = Answer(form, "m", ASKS, tokenizer, StreamOptions(**options))
    chunks = [answer.chunks(piece) for piece in PIECES]
    assert chunks[2] == []
    lasts = [answer.lasts(index, completion) for index, completion in enumerate(ENDED)]
    closings = answer.closings(ENDED)
    return [*answer.openings(), *chain.from_iterable([*chunks, *lasts]), *closings]


def counts(chunk: dict[str, Any]) -> tuple[int, int, int]:
    usage = chunk["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


def test_continuous_usage_counts_each_choice_and_what_could_not_be_shown() -> None:
    chunks = streamed(COMPLETION, include_usage=True, continuous_usage_stats=True)
    assert [counts(chunk) for chunk in chunks[:4]] == [(3, 2, 5), (2, 1, 3), (3, 4, 7), (2, 3, 5)]
    assert [counts(chunk) for chunk in chunks[4:6]] == [(3, 4, 7), (2, 3, 5)]
    assert counts(chunks[6]) == (5, 7, 12) and chunks[6]["choices"] == []


def test_a_chat_says_who_speaks_before_anything_is_counted() -> None:
    alone = streamed(CHAT, continuous_usage_stats=True)
    first, *_ = (chunk for chunk in alone if chunk["choices"][0]["delta"].get("role"))
    assert counts(first)[0] == 3 and all(chunk["choices"] for chunk in alone)


def test_usage_is_silent_unless_it_was_asked_for() -> None:
    assert not [chunk for chunk in streamed(COMPLETION) if "usage" in chunk]
    closed = streamed(COMPLETION, include_usage=True)
    assert ["usage" in chunk for chunk in closed] == [False] * 6 + [True]


def test_sglang_counts_what_could_not_be_shown_too() -> None:
    answer = SglangAnswer(("one", "two"), ASKS, is_one=False)
    chunks = [answer.chunks(piece) for piece in PIECES]
    assert chunks[2] == []
    shown = [chunk for (chunk,) in filter(None, chunks)]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in shown] == [2, 1, 4, 3]
    assert shown[2]["output_ids"] == [10, 11, 12, 13] and shown[2]["text"] == "ab"
    assert [chunk["meta_info"]["id"] for chunk in shown] == ["one", "two", "one", "two"]
