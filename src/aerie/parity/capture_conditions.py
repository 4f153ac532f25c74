"""Which calls are worth keeping: conditions a capture can be asked for, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aerie.errors import UnknownNameError
from aerie.kernels.card import Card

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """A reason to keep a call.

    With `axis`: that axis has another size than in the kernel's call before. With `holds`: a
    question to the call's arrays and results by name, asked of kernels that have all `needs`.
    With neither: every call, of an empty batch only if `takes_empty`.
    """

    name: str
    meaning: str
    axis: str | None = None
    needs: tuple[str, ...] = ()
    holds: Callable[[Values], bool] | None = None
    takes_empty: bool = False

    def applies_to(self, card: Card) -> bool:
        """Whether the kernel can meet the condition at all."""
        names = {port.name for port in card.ports}
        has_axis = self.axis is None or self.axis in {axis.name for axis in card.axes}
        return has_axis and set(self.needs) <= names


def _zero_accepted(values: Values) -> bool:
    return bool((values["accept_count"] == 0).any())


def _all_accepted(values: Values) -> bool:
    depth = values["accept_index"].shape[1] - 1
    return depth > 0 and bool((values["accept_count"] == depth).any())


CONDITIONS = (
    Condition("first", "the first calls of each kernel that have a request"),
    Condition(
        "any", "the first calls of each kernel, those of an empty batch too", takes_empty=True
    ),
    Condition("batch-change", "another number of requests than in the call before", axis="B"),
    Condition("width-change", "another frontier width than in the call before", axis="W"),
    Condition("rows-change", "another number of rows than in the call before", axis="R"),
    Condition(
        "zero-accepted",
        "a request whose drafts were all rejected",
        needs=("accept_index", "accept_count"),
        holds=_zero_accepted,
    ),
    Condition(
        "all-accepted",
        "a request that accepted a whole path",
        needs=("accept_index", "accept_count"),
        holds=_all_accepted,
    ),
    Condition(
        "finished",
        "a request that ended",
        needs=("finished",),
        holds=lambda values: bool(values["finished"].any()),
    ),
    Condition(
        "refused",
        "a status word that is not 0",
        needs=("status",),
        holds=lambda values: bool((values["status"] != 0).any()),
    ),
)


def find_condition(name: str) -> Condition:
    """A condition by name; a wrong one gets the nearest right ones."""
    for condition in CONDITIONS:
        if condition.name == name:
            return condition
    raise UnknownNameError("condition", name, [condition.name for condition in CONDITIONS])
