"""Compares what two backends returned and wrote for one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.kernels.arrays import as_numpy, largest_ulp_distance, ulp_distance
from aerie.kernels.card import Card, Port


@dataclass(frozen=True)
class Difference:
    """Where two backends part: the array, and why; `ulps` is the worst float distance seen."""

    reason: str | None
    ulps: int


def compare_outputs(
    card: Card, expected: Mapping[str, Any], actual: Mapping[str, Any], is_gpu: bool
) -> Difference:
    """Compare outputs and written arrays by name; the first that differs is named."""
    return compare_within(card, expected, actual, lambda name: allowed_ulps(card, name, is_gpu))


def allowed_ulps(card: Card, output: str, is_gpu: bool) -> int:
    """How far a backend may be from the reference in one output."""
    tolerance = card.tolerance(output)
    return tolerance.gpu if is_gpu else tolerance.cpu


def compare_within(
    card: Card,
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    allowed: Callable[[str], int],
) -> Difference:
    """The same, with the ulps each output may be apart given by the caller."""
    worst = 0
    for port in card.ports:
        if port.kind == "in" or expected.get(port.name) is None:
            continue
        found = _compare_port(
            port,
            as_numpy(expected[port.name]),
            as_numpy(actual[port.name]),
            allowed(port.name),
            card.tolerance(port.name).of_largest,
        )
        worst = max(worst, found.ulps)
        if found.reason:
            return Difference(found.reason, worst)
    return Difference(None, worst)


def _compare_port(
    port: Port, expected: Any, actual: Any, allowed: int, is_of_largest: bool
) -> Difference:
    if expected.shape != actual.shape:
        return Difference(f"{port.name}: shape {actual.shape}, expected {expected.shape}", 0)
    if expected.dtype != actual.dtype:
        return Difference(f"{port.name}: dtype {actual.dtype}, expected {expected.dtype}", 0)
    if is_of_largest or expected.dtype in (np.float32, np.float16):
        ulps = (largest_ulp_distance if is_of_largest else ulp_distance)(expected, actual)
        if ulps > allowed:
            where = _first_difference(expected, actual)
            return Difference(f"{port.name}: {ulps} ulps apart, limit {allowed}; {where}", ulps)
        return Difference(None, ulps)
    if not np.array_equal(expected, actual):
        return Difference(f"{port.name}: {_first_difference(expected, actual)}", 0)
    return Difference(None, 0)


def _first_difference(expected: Any, actual: Any) -> str:
    if expected.ndim == 0:
        return f"{actual!r}, expected {expected!r}"
    index = tuple(int(axis[0]) for axis in np.nonzero(expected != actual))
    return f"first at {index}: {actual[index]!r}, expected {expected[index]!r}"


def first_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Name of the first input whose bytes changed, or None."""
    for name, value in before.items():
        if hasattr(value, "dtype"):
            old, new = as_numpy(value), as_numpy(after[name])
            if old.tobytes() != new.tobytes():
                return name
    return None
