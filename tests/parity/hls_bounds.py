"""Host scalars at and past every bound of a compiled kernel; shared, not a test itself."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aerie.kernels.card import Card
from aerie.kernels.hls.signature import FIRST_BOUND, Bound, bounds, parameters


@dataclass(frozen=True)
class Call:
    """Sizes, scalars and bucket lists of a call, and the code it must return."""

    sizes: dict[str, int]
    lists: dict[str, list[int]]
    code: int


def code_of(card: Card, library: Path, call: Call) -> int:
    """What the compiled kernel returns for host scalars alone; past a bound it touches no array."""
    held = {name: np.array(entries, np.int32) for name, entries in call.lists.items()}
    passed: list[Any] = []
    for entry in parameters(card):
        if entry.role in ("size", "scalar"):
            passed.append(ctypes.c_int32(call.sizes[entry.name]))
        elif entry.role == "list":
            passed.append(ctypes.c_void_p(held[entry.name].ctypes.data))
        elif entry.role == "length":
            passed.append(ctypes.c_int32(len(held[entry.name.removeprefix("n_")])))
        else:
            passed.append(None)
    return int(getattr(ctypes.PyDLL(str(library)), card.name)(*passed))


def calls(card: Card) -> Iterator[Call]:
    """Each bound violated alone; then each at its legal ends, with only a later one violated."""
    listed = [
        (code, bound) for code, bound in enumerate(bounds(card), FIRST_BOUND) if not bound.limit
    ]
    for code, bound in listed:
        for wrong in _values(card, bound, is_legal=False):
            yield replace(_with(card, bound, wrong), code=code)
    last_code, last = listed[-1]
    (refused, *_) = _values(card, last, is_legal=False)
    for _, bound in listed[:-1]:
        for legal in _values(card, bound, is_legal=True):
            made = _with(card, bound, legal)
            spoiled = _with(card, last, refused)
            if isinstance(refused, list):
                yield Call(made.sizes, {**made.lists, last.name: refused}, last_code)
            else:
                yield Call(
                    {**made.sizes, last.name: spoiled.sizes[last.name]}, made.lists, last_code
                )


def _values(card: Card, bound: Bound, is_legal: bool) -> list[Any]:
    assert bound.axis is not None
    low, high = bound.axis.low, bound.axis.high
    if getattr(bound.axis, "kind", "") == "ints":
        if is_legal:
            return [[low], [high], list(range(low, high + 1))]
        return [[], [2, 2], [3, 2], [low - 1], [high + 1], [*range(low, high + 1), high + 1]]
    return [low, high] if is_legal else [v for v in (low - 1, high + 1) if v < 2**31]


def _with(card: Card, bound: Bound, value: Any) -> Call:
    sizes = {"E": 4, **{axis.name: axis.low for axis in card.axes}}
    sizes |= {s.name: s.low for s in card.scalars if s.kind != "ints"}
    lists = {s.name: [s.low] for s in card.scalars if s.kind == "ints"}
    if isinstance(value, list):
        return Call(sizes, {**lists, bound.name: value}, 0)
    return Call({**sizes, bound.name: value}, lists, 0)


def wrong_code(card: Card, library: Path) -> Call | None:
    """The first call whose code is not what it must be."""
    return next((call for call in calls(card) if code_of(card, library, call) != call.code), None)
