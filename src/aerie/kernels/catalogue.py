"""The catalogue: every kernel card by name, built by a function and never mutated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TypeVar

from aerie.errors import UnknownNameError
from aerie.kernels.card import Call, Card

Value = TypeVar("Value")


class ByName(Mapping[str, Value]):
    """Kernels or their cards; a wrong name gets the nearest right ones."""

    def __init__(self, named: Mapping[str, Value]) -> None:
        self._named = named

    def __getitem__(self, name: str) -> Value:
        if name not in self._named:
            raise UnknownNameError("kernel", name, self._named)
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


@cache
def catalogue() -> Mapping[str, Card]:
    """All cards in the order of their numbers: K1 to K13, then the round's, R1 onwards."""
    named = [value for own in modules_of("aerie.kernels.cards") for value in vars(own).values()]
    calls = {kind for kind in named if isinstance(kind, type) and issubclass(kind, Call)}
    cards = [kind.card for kind in calls if "card" in vars(kind)]
    return ByName({card.name: card for card in sorted(cards, key=_numeric_order)})


def modules_of(package: str) -> list[ModuleType]:
    """The modules of a package, imported, but for a table that asks for the others."""
    names = [entry.name for entry in iter_modules(import_module(package).__path__)]
    return [import_module(f"{package}.{name}") for name in names if name != "table"]


def _numeric_order(card: Card) -> tuple[str, int, str, str]:
    digits = "".join(filter(str.isdigit, card.number))
    return card.number[0], int(digits), card.number, card.name
