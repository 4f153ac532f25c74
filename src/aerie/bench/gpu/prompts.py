"""Held-out prompts of any context for the matrix and the gates, chosen by a stated rule."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.bench.round.setup import tokenizer_of_pair
from aerie.text.heldout import Document, read_documents

RULE = (
    "the beginnings of held-out documents of code, no two of one document: those of the shortest "
    "length that holds the context come first, then longer ones, in the order of their names"
)


@dataclass(frozen=True)
class Prompt:
    """A text's tokens, and where they come from."""

    name: str
    tokens: tuple[int, ...]


class PromptBook:
    """The held-out documents, each encoded once."""

    def __init__(self) -> None:
        tokenizer = tokenizer_of_pair()
        self._encode = tokenizer.encode
        self.end_ids = tokenizer.eos_ids  # each of them ends a text
        self._tokens: dict[str, tuple[int, ...]] = {}

    def choose(self, context: int, n_prompts: int, offset: int = 0) -> list[Prompt]:
        """So many different prompts of a context, by `RULE`, behind the first `offset`."""
        return [
            Prompt(document.name, self._encoded(document)[:context])
            for document in read_documents(context, n_prompts, offset=offset)
        ]

    def _encoded(self, document: Document) -> tuple[int, ...]:
        if document.name not in self._tokens:
            self._tokens[document.name] = tuple(self._encode(document.text))
        return self._tokens[document.name]
