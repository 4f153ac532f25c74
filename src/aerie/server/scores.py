"""Log-probabilities as clients read them: OpenAI's two forms, vLLM's of a prompt, SGLang's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aerie.requests.request import Scored
from aerie.text.stream import TextStream
from aerie.text.tokenizer import Tokenizer

# The first token of a prompt has no score: nothing stood before it.
Scores = Sequence[Scored | None]


class Offsets:
    """Where the tokens of a choice begin in its text, as they come.

    A token within a character begins where that character does; one without text, where the next
    one does.
    """

    def __init__(self, tokenizer: Tokenizer, start: int = 0) -> None:
        self._stream = TextStream(tokenizer)
        self._n_characters = start

    def push(self, ids: Sequence[int]) -> Iterator[int]:
        """Those of the next tokens."""
        for token_id in ids:
            yield self._n_characters
            self._n_characters += len(self._stream.push([token_id]))


def prompt_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """A prompt token by token, its special ones spelt out; that it begins has no text."""
    stream = TextStream(tokenizer, skip_special_tokens=False)
    for index, token_id in enumerate(ids):
        yield "" if index == 0 and token_id == tokenizer.bos_id else stream.push([token_id])
    yield stream.finish()


def prompt_offsets(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> Iterator[int]:
    """Where the tokens of a prompt begin in its text, which a normalizer may have shortened."""
    found = 0
    for _, piece in zip(ids, prompt_pieces(tokenizer, ids), strict=False):
        yield min(found, len(text))
        found += len(piece)


def completion_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], scores: Scores, offsets: Sequence[int], n_best: int
) -> dict[str, Any]:
    """OpenAI's form for completions; the token itself stands among its alternatives."""

    def best(token_id: int, own: Scored | None) -> dict[str, float] | None:
        if own is None:
            return None
        found: dict[str, float] = {}
        for other, value in (*own.top[:n_best], (token_id, own.logprob)):
            found.setdefault(_spelt(tokenizer, other), value)
        return found

    rows = list(zip(ids, scores, strict=True))
    return {
        "tokens": [_spelt(tokenizer, token_id) for token_id in ids],
        "token_logprobs": [None if own is None else own.logprob for own in scores],
        "top_logprobs": [best(*row) for row in rows] if n_best else None,
        "text_offset": list(offsets),
    }


def _spelt(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; OpenAI writes what is part of a character by its bytes."""
    piece = tokenizer.token_bytes(token_id)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def chat_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], scores: Sequence[Scored]
) -> dict[str, Any]:
    """OpenAI's form for chats."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.token_bytes(token_id)
        text = piece.decode("utf-8", errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(piece)}

    content = [
        {**entry(token_id, own.logprob), "top_logprobs": [entry(*other) for other in own.top]}
        for token_id, own in zip(ids, scores, strict=True)
    ]
    return {"content": content, "refusal": None}


def vllm_prompt_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], scores: Scores, n_best: int
) -> list[dict[str, Any] | None]:
    """vLLM's form: by token id, the token itself first; null is a rank beyond the alternatives."""

    def entries(token_id: int, own: Scored | None) -> dict[str, Any] | None:
        if own is None:
            return None
        values, ranks = dict([(token_id, own.logprob), *own.top[:n_best]]), _ranks(own)
        return {
            str(other): {
                "logprob": value,
                "rank": ranks.get(other),
                "decoded_token": tokenizer.token_bytes(other).decode("utf-8", errors="replace"),
            }
            for other, value in values.items()
        }

    return [entries(*row) for row in zip(ids, scores, strict=True)]


def _ranks(own: Scored) -> dict[int, int]:
    return {token_id: rank for rank, (token_id, _) in enumerate(own.top, 1)}


def sglang_logprobs(
    name: str, ids: Sequence[int], scores: Scores, has_best: bool
) -> dict[str, Any]:
    """SGLang's form, of what it calls the input or the output: value, id and no text."""
    values = (None if own is None else own.logprob for own in scores)
    found: dict[str, Any] = {
        f"{name}_token_logprobs": [
            [value, token_id, None] for value, token_id in zip(values, ids, strict=True)
        ]
    }
    if has_best:
        found[f"{name}_top_logprobs"] = [
            None if own is None else [[value, token_id, None] for token_id, value in own.top]
            for own in scores
        ]
    return found
