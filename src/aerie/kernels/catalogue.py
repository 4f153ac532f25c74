"""The catalogue: every kernel card by name, built by a function and never mutated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from aerie.errors import UnknownNameError
from aerie.kernels.card import Card
from aerie.kernels.cards import (
    COMMIT_CARDS,
    GROWTH_CARDS,
    LAYOUT_CARDS,
    MEMORY_CARDS,
    REPLAY_CARDS,
    ROUND_CARDS,
    VERDICT_CARDS,
)


class Catalogue(Mapping[str, Card]):
    """Cards by kernel name; a wrong name gets the nearest right ones."""

    def __init__(self, cards: tuple[Card, ...]) -> None:
        self._cards = MappingProxyType({card.name: card for card in cards})

    def __getitem__(self, name: str) -> Card:
        if name not in self._cards:
            raise UnknownNameError("kernel", name, self._cards)
        return self._cards[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)


def catalogue() -> Catalogue:
    """All cards in the order of their numbers: K1 to K13, then the round's, R1 onwards."""
    cards = (
        *GROWTH_CARDS,
        *LAYOUT_CARDS,
        *VERDICT_CARDS,
        *COMMIT_CARDS,
        *MEMORY_CARDS,
        *REPLAY_CARDS,
        *ROUND_CARDS,
    )
    return Catalogue(tuple(sorted(cards, key=_numeric_order)))


def _numeric_order(card: Card) -> tuple[str, int, str, str]:
    digits = "".join(filter(str.isdigit, card.number))
    return card.number[0], int(digits), card.number, card.name
