"""Stream: joined pieces equal the decoded whole, for random ids in random groups."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("hypothesis", reason="property tests need hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.text import stream as stream_module
from aerie.text.stream import REPLACEMENT, TextStream
from tests.unit.text.vocabularies import LINES, MAKERS, groups_of, tokenizer


def pieces_of(
    name: str, groups: Sequence[Sequence[int]], skip_special_tokens: bool = True
) -> list[str]:
    stream = TextStream(tokenizer(name), skip_special_tokens)
    return [*(stream.push(group) for group in groups), stream.finish()]


@st.composite
def any_ids(draw: st.DrawFn, name: str) -> list[int]:
    """Uniform ids, mixed with those of real texts so that whole characters appear as well."""
    known = tokenizer(name)
    single = st.integers(0, known.vocab_size - 1).map(lambda token_id: [token_id])
    texts = st.text(st.sampled_from("ab .中é😀�\n"), max_size=5).map(known.encode)
    runs = draw(st.lists(st.one_of(single, single, texts), max_size=30))
    return [token_id for run in runs for token_id in run]


@pytest.mark.parametrize("skip_special_tokens", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_pieces_join_to_the_whole(name: str, skip_special_tokens: bool) -> None:
    @settings(max_examples=100)
    @given(any_ids(name), st.lists(st.integers(0, 1000), max_size=12))
    def check(ids: list[int], cuts: list[int]) -> None:
        whole = tokenizer(name).decode(ids, skip_special_tokens)
        for groups in (groups_of(ids, cuts), [[token_id] for token_id in ids]):
            assert "".join(pieces_of(name, groups, skip_special_tokens)) == whole

    check()


@pytest.mark.parametrize("text", LINES)
def test_no_half_character_is_emitted(text: str) -> None:
    ids = tokenizer("byte_level").encode(text)
    pieces = pieces_of("byte_level", [[token_id] for token_id in ids])
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert pieces[-1] == ""


def test_what_is_certain_is_not_held() -> None:
    known = tokenizer("byte_level")
    stream = TextStream(known)
    half, _, tilde = known.encode("ж~", add_special_tokens=False)
    assert stream.push([half]) == ""
    assert stream.push([tilde]) == "\ufffd~"  # the half can no longer complete


def test_a_cut_off_character_is_released_at_the_end() -> None:
    ids = tokenizer("byte_fallback").encode("a 😀", add_special_tokens=False)[:-1]
    assert pieces_of("byte_fallback", [ids])[-1] == REPLACEMENT * 3


def test_space_before_a_word_survives_the_cut() -> None:
    ids = tokenizer("byte_fallback").encode("a b a", add_special_tokens=False)
    assert pieces_of("byte_fallback", [[i] for i in ids]) == ["a", " b", " a", ""]


def test_a_run_of_bytes_waits_for_its_end() -> None:
    known = tokenizer("byte_fallback")
    good = known.encode("a é", add_special_tokens=False)
    bad = known.backend.token_to_id("<0xFF>")
    stream = TextStream(known)
    assert bad is not None
    assert stream.push(good) == "a "
    assert stream.push([bad]) + stream.finish() == REPLACEMENT * 3


@pytest.mark.parametrize("name", MAKERS)
def test_ids_of_an_embeddings_padding_have_no_text(name: str) -> None:
    known = tokenizer(name)
    stream = TextStream(known)
    ids = known.encode("a b", add_special_tokens=False)
    padded = [known.vocab_size, *ids, known.vocab_size + 7]
    assert stream.push(padded) + stream.finish() == known.decode(ids)
    assert known.token_bytes(known.vocab_size) == b""


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("piece", ["a", "\ufffd", "é"])
def test_cost_per_token_is_constant(name: str, piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids decoded in all, not seconds: a second look at everything would be quadratic."""
    known = tokenizer(name)
    ids = known.encode(piece * 3, add_special_tokens=False)[1:2] * 2000
    n_decoded = 0
    decode = stream_module._Window._decode

    def counting(self: stream_module._Window, n_ids: int) -> str:
        nonlocal n_decoded
        n_decoded += n_ids
        return decode(self, n_ids)

    monkeypatch.setattr(stream_module._Window, "_decode", counting)
    assert "".join(pieces_of(name, [[i] for i in ids])) == known.decode(ids)
    assert n_decoded <= 12 * len(ids)
