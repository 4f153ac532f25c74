"""Held-out documents: enough of each length and kind, each whole, none twice, none trained on."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from aerie.api import Engine, SamplingParams, find_pair
from aerie.errors import UsageError
from aerie.text.heldout import (
    CODE,
    KINDS,
    PROSE,
    STEADY,
    Document,
    read_documents,
    read_pieces,
    read_tokens,
    steady_first,
)
from aerie.text.loops import does_not_loop
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from aerie.train.sources import is_permissive

ASSETS = Path("src/aerie/assets")
LEAST = {1024: 256, 8192: 64, 16_384: 64, 32_768: 64, 65_536: 32, 131_072: 4}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(find_pair(None, None)[0])


@pytest.fixture(scope="module")
def encode(tokenizer: Tokenizer) -> Callable[[str], Sequence[int]]:
    """All documents are encoded once."""
    return functools.cache(tokenizer.encode)


@pytest.fixture(scope="module")
def every() -> list[Document]:
    """All of them: as many of each kind as the refusal of too many says there are."""
    found = []
    for kind in KINDS:
        with pytest.raises(UsageError, match="but there are") as refusal:
            read_documents(1, 10_000, kind)
        found += read_documents(1, int(str(refusal.value).split()[-1]), kind)
    return found


def test_enough_of_every_length_and_both_kinds(every: list[Document]) -> None:
    counts = Counter(document.length for document in every)
    assert counts.keys() == LEAST.keys()
    assert all(counts[length] >= least for length, least in LEAST.items())
    assert {(d.length, d.kind) for d in every} == {(n, kind) for n in LEAST for kind in KINDS}
    # Eight groups of the largest batches that are measured at 1K and 8K.
    code = Counter(document.length for document in every if document.kind == CODE)
    assert code[1024] >= 256 and code[8192] >= 64


def test_no_file_stands_in_two_documents(every: list[Document]) -> None:
    files = Counter((d.package, file) for d in every for file in d.files)
    assert max(files.values()) == 1
    assert all(list(document.files) == sorted(document.files) for document in every)
    assert len({document.name for document in every}) == len(every)


def test_packages_are_licensed_and_not_trained_on(every: list[Document]) -> None:
    sources = json.loads((ASSETS / "heldout/sources.json").read_text("utf-8"))["packages"]
    corpus = json.loads((ASSETS / "pair/corpus.json").read_text("utf-8"))["packages"]
    trained = {entry["name"].lower().replace("_", "-") for entry in corpus}
    licences = {entry["package"]: entry["licence"] for entry in sources}
    assert {document.package for document in every} == licences.keys()
    assert all(is_permissive(licence) for licence in licences.values())
    assert not trained & licences.keys()


def test_a_document_holds_its_length(tokenizer: Tokenizer) -> None:
    for length in LEAST:
        kinds = KINDS if length < 65_536 else (CODE,)
        for kind in kinds:
            [ids] = read_tokens(tokenizer.encode, length, 1, kind)
            assert len(ids) == length


def test_the_shortest_that_holds_the_length_comes_first() -> None:
    assert [d.length for d in read_documents(1000, 2)] == [1024] * 2
    assert read_documents(1025, 1)[0].length == 8192
    assert read_documents(8192, 1, PROSE)[0].kind == PROSE
    # Neither kind nor length has more: the next longer documents follow, none twice.
    many = read_documents(8192, 80)
    assert [d.length for d in many] == sorted(d.length for d in many)
    assert {8192, 16_384} == {d.length for d in many} and len({d.name for d in many}) == 80
    assert read_documents(8192, 5, offset=75) == many[75:]


def test_a_prompt_is_cut_to_the_asked_length() -> None:
    found = read_tokens(lambda text: list(text.encode()), 100, 3)
    assert [len(ids) for ids in found] == [100] * 3
    assert bytes(found[1]).decode() == read_documents(100, 2)[1].text[:100]


def test_too_many_are_refused_with_the_number_there_is() -> None:
    with pytest.raises(UsageError, match=r"131072 tokens asked .* but there are 3$"):
        read_documents(131_072, 4)
    with pytest.raises(UsageError, match="kinds: code, prose"):
        read_documents(8, 1, "music")
    with pytest.raises(UsageError, match="there are 0"):
        read_documents(131_073, 1)


def test_pieces_do_not_overlap_and_known_ones_come_first(
    encode: Callable[[str], Sequence[int]],
) -> None:
    listed = json.loads((ASSETS / "heldout" / STEADY).read_text("utf-8"))
    for length, least in ((1024, 256), (8192, 8)):
        known = listed[str(length)]["steady"]
        pieces = list(steady_first(encode, length))
        assert least <= len(known) == len(set(known))
        assert [piece.name for piece in pieces[: len(known)]] == known
        assert len({piece.name for piece in pieces}) == len(pieces) > listed[str(length)]["tried"]
        assert all(len(piece.tokens) == length for piece in pieces)
        places = [piece.name.partition("@") for piece in pieces]
        assert all(int(begin) % length == 0 for _, _, begin in places)
    assert {p.name for p in read_pieces(encode, 8192)} == {p.name for p in pieces}


def test_a_piece_that_is_listed_does_not_loop(
    tokenizer: Tokenizer, encode: Callable[[str], Sequence[int]]
) -> None:
    listed = json.loads((ASSETS / "heldout" / STEADY).read_text("utf-8"))["1024"]
    pieces = list(steady_first(encode, 1024))
    chosen = [pieces[0], pieces[len(listed["steady"]) - 1]]
    with Engine.load(device="cpu", speculation={"method": "none"}) as engine:
        asked = SamplingParams(max_tokens=224, temperature=0.0, ignore_eos=True)
        texts = engine.generate([piece.tokens for piece in chosen], asked)
    assert all(does_not_loop(text.token_ids, tokenizer.eos_ids) for text in texts)
