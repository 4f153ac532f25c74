"""Small tokenizers of every decoding habit, made in code and saved as model directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from aerie.text import tokenizer as text_tokenizer

LINES = (
    "the quick brown fox jumps over the lazy dog, and the dog sleeps",
    "naïve café, Straße, 中文字符 日本語のテキスト 한국어",
    "😀 smile 😀😀 👩‍👩‍👧 family 🏳️‍🌈 flag",
    "def f(x):\n    return x  # four spaces\n",
)
END, TURN = "<|end|>", "<|turn|>"


def byte_level() -> Tokenizer:
    """Like Llama 3 and Qwen: bytes, merges, special tokens, and plain added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(END, special=True), AddedToken(TURN, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    # One added token that bytes could spell too, one that no byte-level vocabulary can.
    tokenizer.add_tokens([" <plain>", "中心"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Like Llama 2: words begin with ▁, unknown characters are bytes, the first space is cut."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "a", "b", "▁a", "▁b", "▁▁", "中", "�", "▁ab", "."]
    model = models.BPE(
        {word: index for index, word in enumerate(words)},
        [("▁", "a"), ("▁", "b"), ("▁", "▁"), ("▁a", "b")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def word_piece() -> Tokenizer:
    """Words with spaces between them, ## for the rest of a word."""
    words = ["[UNK]", "a", "b", "##a", "##b", ".", "中"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


def bytes_and_strip() -> Tokenizer:
    """Byte-level with a second decoder behind it: no public model, but the format allows it."""
    tokenizer = byte_level()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return tokenizer


MAKERS = {maker.__name__: maker for maker in (byte_level, byte_fallback, word_piece)}
MAKERS["bytes_and_strip"] = bytes_and_strip


def save(directory: Path, tokenizer: Tokenizer, **files: object) -> Path:
    """Write tokenizer.json, and `name=object` as name.json beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return directory


@cache
def tokenizer(name: str) -> text_tokenizer.Tokenizer:
    """A tokenizer of MAKERS, loaded as a model's is."""
    with TemporaryDirectory() as folder:
        return text_tokenizer.load_tokenizer(save(Path(folder), MAKERS[name]()))


def groups_of(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """The ids in order, cut at some places; groups may be empty."""
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(edges)]
