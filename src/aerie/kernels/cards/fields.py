"""How cards are written: fields of calls, limits and costs."""

from __future__ import annotations

from types import new_class
from typing import Any

from aerie.kernels.card import REQUIRED, Call, Cost, Limit, Port, Scalar
from aerie.kernels.cards.dtypes import EACH, I32, I64
from aerie.kernels.formula import Formula

# A field is declared as a port or a scalar, and is an array or a number in every call: Any.


def reads(dtypes: tuple[str, ...], shape: tuple[str, ...], meaning: str) -> Any:
    """An input array."""
    return Port("", "in", dtypes, shape, meaning)


def may_read(dtypes: tuple[str, ...], shape: tuple[str, ...], meaning: str) -> Any:
    """An optional input array."""
    return Port("", "in", dtypes, shape, meaning, optional=True)


def updates(dtypes: tuple[str, ...], shape: tuple[str, ...], meaning: str) -> Any:
    """An array written in place."""
    return Port("", "inout", dtypes, shape, meaning)


def may_update(dtypes: tuple[str, ...], shape: tuple[str, ...], meaning: str) -> Any:
    """An optional array written in place."""
    return Port("", "inout", dtypes, shape, meaning, optional=True)


def returns(dtypes: tuple[str, ...], shape: tuple[str, ...], meaning: str, fill: int = 0) -> Any:
    """An output array; `fill` is what unused entries hold."""
    return Port("", "out", dtypes, shape, meaning, fill=fill)


def scalar(kind: str, low: int, high: int, meaning: str, default: object = REQUIRED) -> Any:
    """A value that lives on the host: `int`, `bool` or `ints`."""
    return Scalar("", kind, low, high, meaning, default)


def fields(number: str, name: str, family: str, summary: str, **named: Any) -> type[Call]:
    """Fields of a card that no Python backend runs: their values are never looked at."""
    says = {"number": number, "name": name, "family": family}
    return new_class("Fields", (Call,), says, lambda body: body.update(named, __doc__=summary))


TABLE = reads(I32, ("P", "L"), "request-to-slot table")
POOL_ROW = reads(I64, EACH, "table row of each request")
STATUS = returns(I32, EACH, "per-request status word, 0 = done")


def limit(value: str, bound: str, meaning: str) -> Limit:
    """A host-checked `value <= bound`."""
    return Limit(Formula(value), Formula(bound), meaning)


def cost(read: str, written: str, operations: str) -> Cost:
    """Bytes read, bytes written and operations as formulas of the axes."""
    return Cost(Formula(read), Formula(written), Formula(operations))
