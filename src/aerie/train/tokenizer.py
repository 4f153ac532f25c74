"""The byte-level BPE tokenizer: trained on source code, saved for tokenizers and transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from aerie.train.cleaning import END_OF_TEXT

END_ID = 0  # begins every document and every sequence, and ends a generation

# Words and numbers may take one space in front; punctuation too. Line ends stand alone, so that a
# text cut at a line end is tokenised as it was inside the file. Indentation is one run of spaces,
# all but the last, which belongs to the first word: `        return` is 7 spaces and ` return`,
# the same token as in the middle of a line.
SPLIT = r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[\r\n]+|[^\S\r\n]+(?=[^\S\r\n]\S)|[^\S\r\n]+"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn merges from the texts; every byte is in the vocabulary, so no text is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=32,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, END_ID)]
    )
    assert tokenizer.token_to_id(END_OF_TEXT) == END_ID
    return tokenizer


def encode_texts(tokenizer_json: str, texts: Sequence[str]) -> list[NDArray[np.uint16]]:
    """Tokens of each text, without the leading mark; runs in worker processes."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    return [
        np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint16)
        for text in texts
    ]


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model directory."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def tokenizer_config(max_length: int) -> dict[str, object]:
    """What transformers reads beside tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }


def save_tokenizer(tokenizer_json: str, directory: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    config = json.dumps(tokenizer_config(max_length), indent=2)
    (directory / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")
