"""The tokenizer: exact round trips, indentation, and stable cuts at line ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from aerie.train.cleaning import END_OF_TEXT
from aerie.train.tokenizer import END_ID, encode_texts, save_tokenizer, train_tokenizer

TEXT = Path(random.__file__).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([TEXT], 600)


def test_vocabulary_and_special_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 600
    assert tokenizer.encode("x").ids[0] == END_ID
    assert tokenizer.encode(END_OF_TEXT, add_special_tokens=False).ids == [END_ID]


@pytest.mark.parametrize("text", [TEXT, "", "\t\tx\n\n  \n y", "naïve 日本 🙂\r\n", "a" * 50])
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_indentation_is_one_run_and_words_keep_their_space(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\n        return self", add_special_tokens=False).ids
    pieces = [tokenizer.decode([i]) for i in ids]
    assert pieces[:2] == ["\n", " " * 7]
    assert "".join(pieces[2:]) == " return self"


def test_a_cut_at_a_line_end_changes_no_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    ends = [i + 1 for i, t in enumerate(ids) if tokenizer.decode([t]).endswith("\n")]
    for begin, end in ((ends[3], ends[40]), (ends[10], ends[11]), (ends[50], ends[200])):
        text = tokenizer.decode(ids[begin:end])
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids[begin:end]


def test_transformers_reads_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer.to_str(), tmp_path, 1024)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (
        theirs("def f(x):\n    return x").input_ids
        == tokenizer.encode("def f(x):\n    return x").ids
    )
    assert theirs.eos_token_id == END_ID


def test_workers_encode_without_the_mark(tokenizer: Tokenizer) -> None:
    array = encode_texts(tokenizer.to_str(), ["x = 1\n"])[0]
    assert array.tolist() == tokenizer.encode("x = 1\n", add_special_tokens=False).ids
