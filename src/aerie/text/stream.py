"""Stream: token ids in, text out, never half a character and never a character taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from aerie.text.tokenizer import (
    BYTE_FALLBACK,
    BYTE_LEVEL,
    Tokenizer,
    byte_level_bytes,
    is_fallback_byte,
)

REPLACEMENT = "\ufffd"


class TextStream:
    """Incremental decoding of one text.

    All pushes and then `finish`, joined, are `tokenizer.decode` of all ids, whatever the groups.
    Each token costs O(1), amortised. An id that no token has, as the padding of an embedding
    gives, has no text. `finish` is called once, last.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._pieces = (
            _Bytes(tokenizer) if tokenizer.decoder_kinds == {BYTE_LEVEL} else _Window(tokenizer)
        )

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; return the text that no later id can change."""
        has_text = self._tokenizer.has_text
        kept = [
            token_id for token_id in ids if token_id not in self._skipped and has_text(token_id)
        ]
        return self._pieces.push(kept) if kept else ""

    def finish(self) -> str:
        """The text that was still waiting; what is half a character becomes U+FFFD."""
        return self._pieces.finish()


class _Bytes:
    """Byte-level vocabularies: a token is some bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        # Python replaces the same malformed sequences as the tokenizers library: both follow
        # Unicode's "maximal subpart" practice. tests/unit/text/test_stream.py holds them together.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        tokens = (self._backend.id_to_token(token_id) or "" for token_id in ids)
        return self._decoder.decode(b"".join(map(byte_level_bytes, tokens)))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class _Window:
    """Other vocabularies: a token's text depends on its neighbours, so they are decoded together.

    `_ids` is a context, already emitted, and then what waits. New text is what the whole decodes
    to beyond the context alone: so the library sees that the text has begun, and keeps the space
    in front of a word. The context moves on only when there was new text: an empty one would
    not count as a beginning.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        self._has_fallback = BYTE_FALLBACK in tokenizer.decoder_kinds
        self._has_bytes = BYTE_LEVEL in tokenizer.decoder_kinds
        self._ids: list[int] = []
        self._n_context = 0
        self._context_text = ""
        self._n_ready = 0  # ids before this one no longer depend on what follows
        self._retry_at = 0

    def push(self, ids: Sequence[int]) -> str:
        self._ids.extend(ids)
        for position in range(len(self._ids) - len(ids), len(self._ids)):
            # A run of fallback bytes is read as a whole: one bad byte at its end turns all of its
            # characters into U+FFFD, so nothing of a run is certain before it ends.
            if not self._is_fallback(self._ids[position]):
                self._n_ready = position + 1
        return self._emit() if self._n_ready > self._n_context else ""

    def finish(self) -> str:
        return self._decode(len(self._ids))[len(self._context_text) :]

    def _emit(self) -> str:
        if self._n_ready < self._retry_at:
            return ""
        text = self._decode(self._n_ready)
        if self._has_bytes and text.endswith(REPLACEMENT):
            # Perhaps half a character. Waiting longer before each new try keeps the cost per
            # token constant even for a text that never becomes valid.
            self._retry_at = self._n_ready + (self._n_ready - self._n_context) // 4
            return ""
        new = text[len(self._context_text) :]
        if new:
            self._advance()
        return new

    def _advance(self) -> None:
        del self._ids[: self._n_context]
        self._n_context = self._n_ready - self._n_context
        self._n_ready = self._n_context
        self._context_text = self._decode(self._n_context)
        self._retry_at = 0

    def _decode(self, n_ids: int) -> str:
        return self._backend.decode(self._ids[:n_ids], skip_special_tokens=False)

    def _is_fallback(self, token_id: int) -> bool:
        return self._has_fallback and is_fallback_byte(self._backend.id_to_token(token_id) or "")
