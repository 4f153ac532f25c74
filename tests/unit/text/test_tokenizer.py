"""Tokenizer: encoding, decoding, what ends a text, and each broken directory refused by name."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest
import tokenizers.models
import tokenizers.normalizers

from aerie.errors import CheckpointError, UsageError
from aerie.text.files import MAX_BYTES
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from tests.unit.text.vocabularies import END, LINES, MAKERS, TURN, byte_fallback, byte_level, save


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"bos_token": END, "eos_token": {"content": TURN, "special": True}}
    folder = tmp_path_factory.mktemp("model")
    return load_tokenizer(save(folder, byte_level(), tokenizer_config=config))


@pytest.mark.parametrize("text", [*LINES, "", " ", "\x00", "a\u0301", "\ufffd", "𝔘𐀀"])
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == [0, *tokenizer.encode(text, add_special_tokens=False)]


TEXTS = [
    "",
    " ",
    "\x00",
    "a\u0301",
    "\ufffd",
    "𝔘𐀀",
    END,
    f"a{TURN} b",
    f"{TURN}{END}",
    " <plain>中心",
]
TEXTS += [*LINES, "".join(LINES) * 50, " " * 999, "ab" * 999, "e\u0301" * 99]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("is_special", [True, False])
def test_ids_are_those_of_the_librarys_plain_call(
    tmp_path: Path, name: str, is_special: bool
) -> None:
    tokenizer = load_tokenizer(save(tmp_path, MAKERS[name]()))
    for text in TEXTS:
        want = tokenizer.backend.encode(text, add_special_tokens=is_special).ids
        assert tokenizer.encode(text, is_special) == want, text[:40]


def test_other_threads_run_while_a_text_is_encoded(tokenizer: Tokenizer) -> None:
    """With the interpreter lock held to the end there would be one pause, as long as it all."""
    text = "".join(LINES) * 4000
    ticks, is_over = [time.monotonic()], threading.Event()

    def tick() -> None:
        while not is_over.wait(0.002):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        tokenizer.encode(text)
    finally:
        is_over.set()
        thread.join()
    seconds = ticks[-1] - ticks[0]
    assert max(b - a for a, b in itertools.pairwise(ticks)) < max(0.5 * seconds, 0.05)


@pytest.mark.parametrize("name", MAKERS)
def test_no_text_has_fewer_tokens_than_its_length_says(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer(save(tmp_path, MAKERS[name]()))
    for text in (*TEXTS, max(tokenizer.backend.get_vocab(), key=len) * 100):
        assert tokenizer.least_tokens(len(text.encode())) <= tokenizer.count(text), text[:40]
    assert (tokenizer.least_tokens(100_000) > 1000) is (name != "word_piece")


def test_a_normalizer_may_shorten_a_text(tmp_path: Path) -> None:
    backend = byte_level()
    backend.add_tokens(["\u0390"])
    backend.normalizer = tokenizers.normalizers.NFC()
    tokenizer = load_tokenizer(save(tmp_path, backend))
    text = "\u1fbe\u0308\u0301" * 100
    assert 1 <= tokenizer.least_tokens(len(text.encode())) <= tokenizer.count(text)


def test_a_token_that_swallows_blanks_leaves_no_bound(tmp_path: Path) -> None:
    backend = byte_level()
    backend.add_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    tokenizer = load_tokenizer(save(tmp_path, backend))
    assert tokenizer.count(" " * 9999 + "<mask>") == 1 and tokenizer.least_tokens(9999) == 0


def test_special_tokens_are_shown_on_request(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"a{TURN}b")
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"{END}a{TURN}b"
    assert tokenizer.special_ids == {0, 1}


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\ude00\ud83d"])
def test_lone_surrogates_are_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(UsageError, match="lone surrogate U\\+D"):
        tokenizer.encode(text)


@pytest.mark.parametrize("bad", [-1, 10**6, 2**40])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, bad: int) -> None:
    with pytest.raises(UsageError, match=f"token id {bad} at position 1"):
        tokenizer.decode([5, bad])


def test_unused_ids_are_refused(tmp_path: Path) -> None:
    words = tokenizers.models.WordLevel({"a": 0, "b": 5}, unk_token="a")
    tokenizer = load_tokenizer(save(tmp_path, tokenizers.Tokenizer(words)))
    assert (tokenizer.vocab_size, sorted(tokenizer.unused_ids)) == (6, [1, 2, 3, 4])
    assert tokenizer.decode([0, 5]) == "a b"
    with pytest.raises(UsageError, match="4 of them unused"):
        tokenizer.decode([3])


def test_every_end_counts(tmp_path: Path) -> None:
    folder = save(
        tmp_path,
        byte_level(),
        tokenizer_config={"eos_token": TURN, "bos_token": None},
        generation_config={"eos_token_id": [7, 1], "bos_token_id": 0},
        config={"eos_token_id": 9, "bos_token_id": 3},
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_ids == (1, 7, 9)
    assert tokenizer.bos_id == 0


def test_a_text_may_have_no_end(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, byte_level()))
    assert (tokenizer.eos_ids, tokenizer.bos_id) == ((), None)


def test_settings_of_the_training_do_not_cut_prompts(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=64)
    tokenizer = load_tokenizer(save(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode(LINES[0])) == LINES[0]
    assert tokenizer.encode("a") == [0, *tokenizer.encode("a", add_special_tokens=False)]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {"type": "Nothing"}}', "\xff"])
def test_malformed_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)


def test_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("tokenizer_config", {"eos_token": "<absent>"}, "'<absent>' is not in tokenizer.json"),
        ("tokenizer_config", {"eos_token": 5}, "eos_token is 5"),
        ("tokenizer_config", [], "must be a JSON object"),
        ("generation_config", {"eos_token_id": "2"}, "eos_token_id is '2'"),
        ("generation_config", {"eos_token_id": [1, True]}, "must be a token id"),
        ("config", {"bos_token_id": -1}, "bos_token_id is -1"),
    ],
)
def test_wrong_fields_are_refused(tmp_path: Path, file: str, value: object, message: str) -> None:
    save(tmp_path, byte_level(), **{file: value})
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        (b" " * (MAX_BYTES + 1), "limit"),
    ],
    ids=["cut", "latin", "deep", "long"],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    save(tmp_path, byte_level())
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", MAKERS)
def test_token_bytes_spell_the_text(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer(save(tmp_path, MAKERS[name]()))
    text = " a b 中." if name == "word_piece" else " a bab 中é."
    ids = tokenizer.encode(text, add_special_tokens=False)
    spelt = b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8")
    assert spelt.strip() == tokenizer.decode(ids).strip()


def test_token_bytes_may_be_part_of_a_character(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, byte_fallback()))
    ids = tokenizer.encode(" é", add_special_tokens=False)
    assert [tokenizer.token_bytes(token_id) for token_id in ids[-2:]] == [b"\xc3", b"\xa9"]
