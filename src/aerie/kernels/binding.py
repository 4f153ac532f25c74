"""Checks a call against its card: names, dtypes, shapes, axes, scalars and host-side limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerie.errors import (
    KernelArgumentError,
    KernelBoundsError,
    KernelDtypeError,
    UnknownNameError,
    UsageError,
)
from aerie.kernels.arguments import check_kind, dtype_name, shown
from aerie.kernels.card import REQUIRED, Axis, Card, Port, Scalar
from aerie.kernels.formula import Dim

Arrays = Mapping[str, Any]

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def bind(card: Card, call: Arrays) -> dict[str, int]:
    """Check a call before anything is written; return every axis and integer scalar by name.

    Raises UsageError for wrong names or combinations, KernelArgumentError for what is no array,
    KernelDtypeError for dtypes and KernelBoundsError for shapes, scalars and limits, each naming
    the value and the limit. Whether the arrays' memory will do is `arguments.check_memory`.
    """
    _check_names(card, call)
    sizes = dict(card.defaults or {})
    for scalar in card.scalars:
        _bind_scalar(card, scalar, call.get(scalar.name, scalar.default), sizes)
    given = [port for port in card.inputs if call.get(port.name) is not None]
    for port in given:
        check_kind(f"{card.name}: {port.name}", call[port.name])
    _check_dtypes(card, given, call, sizes)
    _bind_axes(card, given, call, sizes)
    _check_axes(card, sizes)
    _choose_buckets(card, call, sizes)
    for limit in card.limits:
        value, bound = limit.value(sizes), limit.bound(sizes)
        if value > bound:
            raise KernelBoundsError(
                f"{card.name}: {limit.meaning}: {limit.value.text} = {value},"
                f" limit {limit.bound.text} = {bound}",
                value=value,
                limit=bound,
            )
    return sizes


def _check_names(card: Card, call: Arrays) -> None:
    for name in call:
        if name not in card.arguments:
            raise UnknownNameError(f"argument of {card.name}", name, card.arguments)
    given = {name for name, value in call.items() if value is not None}
    missing = sorted(card.required - given)
    if missing:
        raise UsageError(f"{card.name}: missing {', '.join(missing)}")
    for group in card.companions:
        part = given & set(group)
        if part and len(part) < len(group):
            raise UsageError(f"{card.name}: {' and '.join(group)} belong together, got {part}")
    if card.alternatives:
        whole = [group for group in card.alternatives if set(group) <= given]
        named = {name for group in card.alternatives for name in group} & given
        if len(whole) != 1 or named != set(whole[0]):
            choices = " or ".join(" + ".join(group) for group in card.alternatives)
            raise UsageError(f"{card.name}: give exactly one of {choices}, got {sorted(named)}")


def _bind_scalar(card: Card, scalar: Scalar, value: object, sizes: dict[str, int]) -> None:
    if value is REQUIRED:
        raise UsageError(f"{card.name}: missing {scalar.name}")
    if scalar.kind == "ints":
        _bind_buckets(card, scalar, value, sizes)
        return
    if isinstance(value, bool) != (scalar.kind == "bool") or not isinstance(value, int):
        raise KernelArgumentError(
            f"{card.name}: {scalar.name} must be {scalar.kind}, got {shown(value)}",
            value=value,
            limit=scalar.kind,
        )
    _check_span(f"{card.name}: {scalar.name} =", value, scalar)
    sizes[scalar.name] = int(value)


def _check_span(what: str, value: int, span: Axis | Scalar) -> None:
    if not span.low <= value <= span.high:
        raise KernelBoundsError(
            f"{what} {shown(value)}, limit {span.low}..{span.high}",
            value=value,
            limit=span.high if value > span.high else span.low,
        )


def _bind_buckets(card: Card, scalar: Scalar, value: Any, sizes: dict[str, int]) -> None:
    is_tuple = isinstance(value, tuple) and all(type(entry) is int for entry in value)
    if not is_tuple or not value or list(value) != sorted(set(value)):
        raise KernelArgumentError(
            f"{card.name}: {scalar.name} must be an ascending tuple of integers,"
            f" got {shown(value)}",
            value=value,
            limit="an ascending tuple",
        )
    for entry in value:
        _check_span(f"{card.name}: {scalar.name} holds", entry, scalar)
    sizes[f"largest_{scalar.name}"] = value[-1]


def _check_dtypes(card: Card, ports: list[Port], call: Arrays, sizes: dict[str, int]) -> None:
    """Every dtype is one the card lists; arrays with the same choice of several must agree."""
    chosen: dict[tuple[str, ...], Port] = {}  # the first array of each choice
    names: dict[str, str] = {}
    for port in ports:
        name = dtype_name(call[port.name])
        if name == "uint16" and "bfloat16" in port.dtypes:
            name = "bfloat16"
        if name not in port.dtypes:
            raise KernelDtypeError(
                f"{card.name}: {port.name} is {name}, the card takes {' or '.join(port.dtypes)}",
                value=name,
                limit=port.dtypes,
            )
        names[port.name] = name
        first = chosen.setdefault(port.dtypes, port).name
        if name != names[first]:
            raise KernelDtypeError(
                f"{card.name}: {port.name} is {name} and {first} {names[first]}; convert one",
                value=name,
                limit=names[first],
            )
        if len(port.dtypes) > 1:
            sizes["E"] = _ITEM_BYTES[name]


def _bind_axes(card: Card, ports: list[Port], call: Arrays, sizes: dict[str, int]) -> None:
    """Bind axes from plain dimensions first, then from products with one unknown factor."""
    bound: set[str] = set()
    for port in ports:
        shape = call[port.name].shape
        if len(shape) != len(port.dims):
            raise KernelBoundsError(
                f"{card.name}: {port.name} has {len(shape)} axes, the card has {len(port.dims)}:"
                f" [{', '.join(port.shape)}]",
                value=len(shape),
                limit=len(port.dims),
            )
        for dim, size in zip(port.dims, shape, strict=True):
            if len(dim.factors) == 1 and dim.factors[0] not in bound:
                name = dim.factors[0]
                if name in sizes and name not in (card.defaults or {}):
                    continue
                value = dim.solve(size, {})
                if value is not None:
                    sizes[name] = value
                    bound.add(name)
    for port in ports:
        for dim, size in zip(port.dims, call[port.name].shape, strict=True):
            _bind_product(f"{card.name}: {port.name}", dim, size, sizes)


def _bind_product(where: str, dim: Dim, size: int, sizes: dict[str, int]) -> None:
    unknown = dim.unknowns(sizes)
    if len(unknown) == 1:
        value = dim.solve(size, sizes)
        if value is not None:
            sizes[unknown[0]] = value
            return
    if unknown or dim.size(sizes) != size:
        expected = None if unknown else dim.size(sizes)
        raise KernelBoundsError(
            f"{where} has {size} entries along {dim.text},"
            f" expected {expected if expected is not None else 'a multiple'}",
            value=size,
            limit=expected,
        )


def _check_axes(card: Card, sizes: Mapping[str, int]) -> None:
    for axis in card.axes:
        value = sizes.get(axis.name)
        if value is not None:
            _check_span(f"{card.name}: {axis.meaning} {axis.name} =", value, axis)


def _choose_buckets(card: Card, call: Arrays, sizes: dict[str, int]) -> None:
    for scalar in card.scalars:
        if scalar.kind == "ints":
            fitting = [entry for entry in call[scalar.name] if entry >= sizes["B"]]
            sizes[f"chosen_{scalar.name}"] = fitting[0] if fitting else call[scalar.name][-1]
