"""Judges mutated calls: a backend does what the reference does, by result or by named error."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aerie.errors import AerieError, KernelBoundsError
from aerie.kernels import catalogue
from aerie.kernels.arguments import shown
from aerie.kernels.arrays import as_numpy
from aerie.kernels.binding import bind
from aerie.kernels.card import Card
from aerie.kernels.registry import Kernels
from aerie.parity.compare import compare_outputs
from tests.parity.mutations import Call

Loaded = dict[str, Kernels]  # by what becomes of data errors: raise, or status


@dataclass(frozen=True)
class Outcome:
    """What a backend made of a call."""

    inputs: dict[str, Any]
    result: dict[str, Any]
    error: BaseException | None
    changed: tuple[str, ...]  # arrays whose bytes the call changed


@dataclass
class Tally:
    """What a run of mutated calls came to."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)  # kernel, mutation
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def run_call(kernels: Kernels, call: Call) -> Outcome:
    """Call a kernel with fresh inputs; a warning is as bad as an exception."""
    inputs = call.build()
    before = photograph(inputs)
    result: dict[str, Any] = {}
    error: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Triton's interpreter computes with NumPy, which warns where a GPU does not.
            warnings.filterwarnings("ignore", module=r"triton\.")
            result = kernels[call.kernel](**inputs)._asdict()
    except Exception as raised:
        error = raised
    after = photograph(inputs)
    return Outcome(inputs, result, error, tuple(n for n in before if before[n] != after[n]))


def photograph(inputs: dict[str, Any]) -> dict[str, bytes]:
    """The bytes of every array; those of objects are not its own."""
    return {name: as_numpy(value).tobytes() for name, value in inputs.items() if _has_bytes(value)}


def _has_bytes(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype != object
    # A tensor: that takes torch, which the sanitizers would watch for nothing.
    is_plain = str(getattr(value, "layout", "")) == "torch.strided" and not value.is_nested
    return is_plain and value.is_cpu and not value.is_quantized and not value.is_neg()


def difference(call: Call, kernels: Kernels, expected: Outcome) -> str | None:
    """Why a backend's outcome is not the reference's, or None."""
    actual = run_call(kernels, call)
    card = kernels[call.kernel].card
    for name, outcome in (("the reference", expected), (kernels.backend, actual)):
        if outcome.error is not None and not isinstance(outcome.error, AerieError):
            return f"{name}: raw {outcome.error!r}"
        if outcome.error is not None and outcome.changed:
            return f"{name} raised, but wrote {outcome.changed}"
        if set(outcome.changed) - set(card.written):
            return f"{name} wrote {outcome.changed}"
    if _is_beyond(card, actual.inputs) and not _is_beyond(catalogue()[call.kernel], actual.inputs):
        is_refused = isinstance(actual.error, KernelBoundsError)
        return None if is_refused else f"beyond its bounds, but {actual.error!r}"
    if _named(expected.error) != _named(actual.error):
        return f"{_named(actual.error)}, the reference {_named(expected.error)}"
    if expected.error is not None:
        return None
    whole = [{**outcome.inputs, **outcome.result} for outcome in (expected, actual)]
    return compare_outputs(card, *whole, is_gpu=False).reason


def _named(error: BaseException | None) -> tuple[object, ...]:
    """What a caller can tell one error from another by.

    Of several offenders among the data a backend may name any.
    """
    if error is None:
        return ("no error",)
    status = getattr(error, "status", None)
    value = getattr(error, "value", None) if status is None else "some value"
    return (type(error).__name__, shown(value), shown(getattr(error, "limit", None)), shown(status))


def _is_beyond(card: Card, inputs: dict[str, Any]) -> bool:
    try:
        bind(card, inputs)
    except KernelBoundsError:
        return True
    except AerieError:
        return False
    return False


def run_calls(calls: Iterable[Call], backends: Iterable[Loaded], reference: Loaded) -> Tally:
    """Every call on every backend against the reference."""
    tally, backends = Tally(), list(backends)
    for call in calls:
        expected = run_call(reference[call.data_errors], call)
        kind = "result" if expected.error is None else type(expected.error).__name__
        for loaded in backends:
            kernels = loaded[call.data_errors]
            reason = difference(call, kernels, expected)
            tally.outcomes[kind] += 1
            for mutation in [name for name, _ in call.mutations] or ["none"]:
                tally.calls[call.kernel, mutation] += 1
            if reason:
                tally.failures.append(f"{kernels.backend} {call}: {reason}")
    return tally
