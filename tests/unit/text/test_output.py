"""Output: text, stop and token count are the same however the tokens were grouped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("hypothesis", reason="property tests need hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.errors import UsageError
from aerie.text.output import TextOutput
from tests.unit.text.vocabularies import groups_of, tokenizer

NAMES = ("byte_level", "byte_fallback")


def decode(
    name: str, groups: Sequence[Sequence[int]], stops: list[str]
) -> tuple[str, str | None, int]:
    output, texts, n_tokens = TextOutput(tokenizer(name), stops), [], 0
    for group in groups:
        delta = output.push(group)
        texts.append(delta.text)
        n_tokens += delta.n_tokens
        if delta.stop is not None:
            return "".join(texts), delta.stop, n_tokens
    last = output.finish()
    return "".join([*texts, last.text]), last.stop, n_tokens + last.n_tokens


@pytest.mark.parametrize("name", NAMES)
def test_grouping_does_not_matter(name: str) -> None:
    known = tokenizer(name)
    letters = "ab .中é"

    @settings(max_examples=120)
    @given(
        st.text(letters, max_size=25),
        st.lists(st.text(letters, min_size=1, max_size=3), max_size=3),
        st.lists(st.integers(0, 100), max_size=8),
    )
    def check(text: str, stops: list[str], cuts: list[int]) -> None:
        ids = known.encode(text)
        one_by_one = decode(name, [[token_id] for token_id in ids], stops)
        assert decode(name, groups_of(ids, cuts), stops) == one_by_one
        whole, (emitted, stop, n_tokens) = known.decode(ids), one_by_one
        if stop is None:
            assert (emitted, n_tokens) == (whole, len(ids))
            assert not any(candidate in whole for candidate in stops)
        else:
            assert whole.startswith(emitted + stop)
            assert not any(candidate in emitted for candidate in stops)

    check()


def test_tokens_after_the_stop_are_not_counted() -> None:
    known = tokenizer("byte_level")
    before, stop, after = (known.encode(text, False) for text in ("fox ", "~~", "dog"))
    delta = TextOutput(known, ["~~"]).push(before + stop + after)
    assert (delta.text, delta.stop, delta.n_tokens) == ("fox ", "~~", len(before + stop))


def test_after_a_stop_nothing_waits() -> None:
    known = tokenizer("byte_level")
    output = TextOutput(known, ["o"])
    assert output.push(known.encode("fox")).text == "f"
    assert (output.finish().text, output.finish().stop) == ("", "o")
    with pytest.raises(UsageError, match="already ended"):
        output.push(known.encode("x"))


def test_finish_releases_what_waited() -> None:
    known = tokenizer("byte_level")
    output = TextOutput(known, ["foxes"])
    assert output.push(known.encode("a fox")).text == "a "
    assert output.finish().text == "fox"
