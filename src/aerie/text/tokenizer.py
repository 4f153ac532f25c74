"""Tokenizer: text to ids and back, with the ids that begin and end a text.

tokenizer.json alone decides how text becomes ids, the leading bos included, as transformers does
since version 5; the JSON files beside it only name the tokens that begin and end a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType

import tokenizers
from tokenizers import pre_tokenizers

from aerie.errors import CheckpointError, UsageError
from aerie.text.files import TOKENIZER_CONFIG, read_object, special_tokens

BYTE_LEVEL, BYTE_FALLBACK = "ByteLevel", "ByteFallback"
# How much shorter a normalizer may make a text. Canonical composition does most of what public
# models ask for: three characters of seven bytes (U+1FBE, two accents) become one of two.
MOST_SHRINKING = 4
_FALLBACK = re.compile("<0x[0-9A-Fa-f]{2}>")


def _byte_alphabet() -> Mapping[str, int]:
    """Which byte each character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves; the others take the next free code points, in order.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    themselves = {char: ord(char) for char in alphabet if ord(char) < 256}
    moved = [char for char in alphabet if char not in themselves]
    rest = sorted(set(range(256)) - set(themselves.values()))
    return MappingProxyType(themselves | dict(zip(moved, rest, strict=True)))


_BYTES = _byte_alphabet()


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A model's tokenizer: a value, safe to share between threads.

    Ids of a model beyond `vocab_size` are padding of its embedding: it may emit them, and they
    have no text. To decode one that a client sent is an error.
    """

    backend: tokenizers.Tokenizer
    vocab_size: int  # one more than the largest id
    unused_ids: frozenset[int]  # ids below vocab_size that no token has
    special_ids: frozenset[int]
    decoder_kinds: frozenset[str]
    bos_id: int | None
    eos_ids: tuple[int, ...]  # each of them ends a text

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text. A rendered chat brings its own special tokens: pass False for it."""
        refuse_surrogates(text, "text")
        # A batch of one, for `encode` keeps the interpreter lock to its end: 6 s for 4 MB.
        (found,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found.ids)

    def count(self, text: str) -> int:
        """How many ids a text has, without those that a model puts around it."""
        return len(self.backend.encode_batch_fast([text], add_special_tokens=False)[0])

    def least_tokens(self, n_bytes: int) -> int:
        """No text of so many bytes has fewer ids: what is too long need not be encoded.

        0 where nothing can be said: an unknown word may be one token, however long it is.
        """
        return n_bytes // self._longest_span if self._longest_span else 0

    @cached_property
    def _longest_span(self) -> int:
        """Most bytes of a text that one token stands for; 0: any number."""
        added = self.backend.get_added_tokens_decoder().values()
        if not self.decoder_kinds & {BYTE_LEVEL, BYTE_FALLBACK}:
            return 0
        if any(token.lstrip or token.rstrip for token in added):
            return 0  # such a token swallows all blanks beside it
        spelt = byte_level_bytes if BYTE_LEVEL in self.decoder_kinds else str.encode
        longest = max(len(spelt(token)) for token in self.backend.get_vocab())
        return longest if self.backend.normalizer is None else longest * MOST_SHRINKING

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD."""
        self.check_ids(ids)
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def has_text(self, token_id: int) -> bool:
        """Whether a token has this id."""
        return 0 <= token_id < self.vocab_size and token_id not in self.unused_ids

    def check_ids(self, ids: Iterable[int]) -> None:
        """Refuse ids that no token has."""
        for position, token_id in enumerate(ids):
            if not self.has_text(token_id):
                raise UsageError(
                    f"token id {token_id} at position {position} is not in the vocabulary "
                    f"(ids 0..{self.vocab_size - 1}, {len(self.unused_ids)} of them unused); "
                    "use the tokenizer that belongs to the model"
                )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to a text that has begun; part of a character, or none."""
        token = self.backend.id_to_token(token_id) if self.has_text(token_id) else None
        if token is None:
            return b""
        if BYTE_LEVEL in self.decoder_kinds:
            return byte_level_bytes(token)
        if BYTE_FALLBACK in self.decoder_kinds and is_fallback_byte(token):
            return bytes.fromhex(token[3:5])
        # The first token of a text may lose a leading space; the second one keeps it.
        once, twice = (self.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
        return twice[len(once) :].encode("utf-8")


@lru_cache(maxsize=1 << 16)
def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary; one with foreign characters is plain."""
    values = [_BYTES.get(char) for char in token]
    mapped = [value for value in values if value is not None]
    return bytes(mapped) if len(mapped) == len(values) else token.encode("utf-8")


def is_fallback_byte(token: str) -> bool:
    """Whether the token is one byte of a vocabulary with byte fallback, written <0x41>."""
    return _FALLBACK.fullmatch(token) is not None


def refuse_surrogates(text: str, what: str) -> None:
    """Half of a UTF-16 pair is not a character: it has no UTF-8 and no token."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} has a lone surrogate U+{ord(text[error.start]):04X} at position "
            f"{error.start}; send well-formed Unicode"
        ) from error


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer of a model directory, or a CheckpointError that says what is wrong with it."""
    folder = Path(directory)
    backend = _read_backend(folder / "tokenizer.json")
    ids = set(backend.get_vocab(with_added_tokens=True).values())
    if not ids:
        raise CheckpointError(f"{folder / 'tokenizer.json'} has an empty vocabulary")
    vocab_size = max(ids) + 1
    ends = _named_ids(folder, backend)
    added = backend.get_added_tokens_decoder()
    return Tokenizer(
        backend=backend,
        vocab_size=vocab_size,
        unused_ids=frozenset(range(vocab_size)) - ids,
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        decoder_kinds=_decoder_kinds(backend),
        bos_id=next(iter(ends["bos"]), None),
        eos_ids=tuple(dict.fromkeys(ends["eos"])),
    )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise CheckpointError(
            f"{path.parent} has no tokenizer.json; save the model's fast tokenizer there, or use "
            "token ids instead of text"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{path} is not a tokenizer: {error}; download it again") from error
    # A file may carry its training's settings; they would cut prompts in silence.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _decoder_kinds(backend: tokenizers.Tokenizer) -> frozenset[str]:
    """The names of the decoders in use; a sequence counts as its members."""
    if backend.decoder is None:
        return frozenset()
    found, waiting = set(), [json.loads(backend.decoder.__getstate__())]
    while waiting:
        node = waiting.pop()
        if node["type"] == "Sequence":
            waiting += node["decoders"]
        else:
            found.add(node["type"])
    return frozenset(found)


def _named_ids(folder: Path, backend: tokenizers.Tokenizer) -> dict[str, list[int]]:
    """Ids that begin and end a text, by what any file says, the tokenizer's own first."""
    found: dict[str, list[int]] = {"bos": [], "eos": []}
    path = folder / TOKENIZER_CONFIG
    named = special_tokens(read_object(path), path)
    for kind, ids in found.items():
        token = named.get(f"{kind}_token")
        if token is not None:
            ids.append(_id_of(token, kind, path, backend))
    for name in ("generation_config.json", "config.json"):
        values = read_object(folder / name)
        for kind, ids in found.items():
            ids += _id_list(values.get(f"{kind}_token_id"), f"{folder / name}: {kind}_token_id")
    return found


def _id_of(token: str, kind: str, path: Path, backend: tokenizers.Tokenizer) -> int:
    token_id = backend.token_to_id(token)
    if token_id is None:
        raise CheckpointError(
            f"{path}: {kind}_token {token!r} is not in tokenizer.json; the files belong to "
            "different models, download both again"
        )
    return token_id


def _id_list(value: object, what: str) -> list[int]:
    """An id or a list of ids; null is no id."""
    ids = []
    for entry in value if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(entry, bool) or not isinstance(entry, int) or entry < 0:
            raise CheckpointError(f"{what} is {value!r:.60}, must be a token id or a list of them")
        ids.append(entry)
    return ids
