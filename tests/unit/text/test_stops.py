"""Stops: the matcher against a plain search, over random texts, stops and cuts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("hypothesis", reason="property tests need hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.errors import UsageError
from aerie.text.stops import MAX_STOP_CHARS, MAX_STOPS, StopStrings

LETTERS = "ab"  # few letters, so that matches and false beginnings are common


def plain_search(stops: Sequence[str], pushes: Sequence[str]) -> tuple[str, str | None, int]:
    """Look at the whole text after every push: slow, and obviously what is wanted."""
    text = ""
    for n_pushes, push in enumerate(pushes, 1):
        text += push
        found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
        if found:
            start, _, stop = min(found)
            return text[:start], stop, n_pushes
    return text, None, len(pushes)


def run(stops: Sequence[str], pushes: Sequence[str]) -> tuple[str, str | None, int]:
    matcher, text = StopStrings(stops), ""
    for n_pushes, push in enumerate(pushes, 1):
        result = matcher.push(push)
        text += result.emit
        if result.matched is not None:
            assert matcher.finish() == ""
            return text, result.matched, n_pushes
    return text + matcher.finish(), None, len(pushes)


some_stops = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=5)
some_pushes = st.lists(st.text(LETTERS + "c", max_size=4), max_size=12)


@settings(max_examples=300)
@given(some_stops, some_pushes)
def test_equals_plain_search(stops: list[str], pushes: list[str]) -> None:
    assert run(stops, pushes) == plain_search(stops, pushes)


@settings(max_examples=200)
@given(some_stops, some_pushes)
def test_holds_exactly_what_may_become_a_stop(stops: list[str], pushes: list[str]) -> None:
    matcher, text, emitted = StopStrings(stops), "", ""
    for push in pushes:
        result = matcher.push(push)
        if result.matched is not None:
            return
        text, emitted = text + push, emitted + result.emit
        suffixes = (text[start:] for start in range(len(text)))
        held = (s for s in suffixes if any(stop.startswith(s) for stop in stops))
        assert text == emitted + next(held, "")


@pytest.mark.parametrize(
    ("stops", "pushes", "expected"),
    [
        (["END"], ["x E", "N", "D y"], ("x ", "END", 3)),
        (["ab", "abc"], ["xabcy"], ("x", "abc", 1)),  # same start: the longest
        (["ab", "abc"], ["xab", "c"], ("x", "ab", 1)),  # complete is final
        (["c", "bcd"], ["abcd"], ("a", "bcd", 1)),  # begins first
        (["aab"], ["a", "a", "a", "b"], ("a", "aab", 4)),
        (["\n\n"], ["a\n", "b\n", "\n"], ("a\nb", "\n\n", 3)),
        (["😀"], ["a", "😀"], ("a", "😀", 2)),
        (["abc"], ["", "ab"], ("ab", None, 2)),
        ([], ["ab", "c"], ("abc", None, 2)),
        (["x", "x"], ["x"], ("", "x", 1)),
    ],
)
def test_examples(
    stops: list[str], pushes: list[str], expected: tuple[str, str | None, int]
) -> None:
    assert run(stops, pushes) == expected


def test_nothing_follows_a_match() -> None:
    matcher = StopStrings(["b"])
    assert matcher.push("abab").emit == "a"
    assert matcher.matched == "b"
    with pytest.raises(UsageError, match="already ended at stop string 'b'"):
        matcher.push("c")


def test_limits_are_inclusive() -> None:
    stops = [f"{index:02d}".rjust(MAX_STOP_CHARS, "a") for index in range(MAX_STOPS)]
    assert run(stops, ["a"] * 300 + list("63!")) == ("a" * 46, stops[63], 302)


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([""], "empty stop string"),
        (["a", ""], "empty stop string"),
        ("stop", "pass a list"),
        (["a" * (MAX_STOP_CHARS + 1)], "257 characters, limit 256"),
        (["a"] * (MAX_STOPS + 1), "65 stop strings, limit 64"),
        (["\ud83d"], "lone surrogate"),
        ([7], "is a int"),
    ],
)
def test_impossible_stops_are_refused(stops: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StopStrings(stops)
