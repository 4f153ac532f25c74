"""Runs parity cases on a backend against the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aerie.errors import KernelBoundsError, KernelError
from aerie.kernels.arrays import on_device
from aerie.kernels.binding import bind
from aerie.kernels.card import Card
from aerie.kernels.cases.case import Case
from aerie.kernels.registry import Kernels
from aerie.parity.compare import compare_outputs, first_change


@dataclass(frozen=True)
class CaseResult:
    """Outcome of one case; `reason` says what differed."""

    kernel: str
    case: str
    ok: bool
    reason: str | None
    ulps: int


@dataclass(frozen=True)
class ParityReport:
    """Outcome of a parity run."""

    backend: str
    device: str
    results: tuple[CaseResult, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernels that were run, in order."""
        return tuple(dict.fromkeys(result.kernel for result in self.results))

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """Cases that differ."""
        return tuple(result for result in self.results if not result.ok)


@dataclass(frozen=True)
class Outcome:
    """What one backend did with one case."""

    arrays: dict[str, Any]
    error: Exception | None = None
    changed: str | None = None


def run_parity(
    kernels: Kernels,
    reference: Kernels,
    cases: Iterable[Case],
    on_result: Callable[[CaseResult], None] = lambda result: None,
) -> ParityReport:
    """Run every case on both backends; `reference` must treat data errors as `kernels` does."""
    results = []
    for case in cases:
        result = run_case(kernels, reference, case)
        on_result(result)
        results.append(result)
    return ParityReport(kernels.backend, kernels.device, tuple(results))


def run_case(kernels: Kernels, reference: Kernels, case: Case) -> CaseResult:
    """One case on both backends: outputs, arrays written in place, refusals, untouched state."""
    return judge_case(kernels, case, call_case(reference, case), reference[case.kernel].card)


def judge_case(kernels: Kernels, case: Case, expected: Outcome, card: Card) -> CaseResult:
    """One case against what the reference made of it; `card` is the contract without limits
    of the backend's own. A case beyond those passes if and only if it is refused for its bounds.
    """
    actual = call_case(kernels, case)
    own = kernels[case.kernel].card
    if own.limits != card.limits and _is_beyond(own, case) and not _is_beyond(card, case):
        reason = _bounds_difference(actual)
        return CaseResult(case.kernel, case.name, reason is None, reason, 0)
    reason = _refusal_difference(case, expected, actual, kernels.data_errors)
    ulps = 0
    if reason is None and expected.error is None:
        is_gpu = not kernels.device.startswith("cpu")
        difference = compare_outputs(own, expected.arrays, actual.arrays, is_gpu)
        reason, ulps = difference.reason, difference.ulps
    return CaseResult(case.kernel, case.name, reason is None, reason, ulps)


def _is_beyond(card: Card, case: Case) -> bool:
    try:
        bind(card, case.build())
    except KernelBoundsError:
        return True
    except KernelError:
        return False
    return False


def _bounds_difference(actual: Outcome) -> str | None:
    if not isinstance(actual.error, KernelBoundsError):
        return f"beyond the backend's bounds, but it raised {actual.error!r}"
    return f"raised, but {actual.changed} had been written" if actual.changed else None


def call_case(kernels: Kernels, case: Case) -> Outcome:
    """What a backend makes of a case: the result and every array after the call, or the error."""
    inputs = {name: on_device(value, kernels.device) for name, value in case.build().items()}
    try:
        result = kernels[case.kernel](**inputs)
    except KernelError as error:
        return Outcome({}, error, first_change(case.build(), inputs))
    except Exception as crash:
        # A backend under construction may fail in any way; the other cases still count.
        return Outcome({}, crash)
    return Outcome({**inputs, **result._asdict()})


def _refusal_difference(
    case: Case, expected: Outcome, actual: Outcome, data_errors: str
) -> str | None:
    if case.expects and data_errors == "raise" and not isinstance(expected.error, case.expects):
        return f"the reference raised {expected.error!r}, the case expects {case.expects.__name__}"
    if not case.expects and expected.error:
        return f"the reference refused: {expected.error}"
    if type(expected.error) is not type(actual.error):
        return f"raised {actual.error!r}, the reference {expected.error!r}"
    expected_words = getattr(expected.error, "status", None)
    actual_words = getattr(actual.error, "status", None)
    if expected_words != actual_words:
        return f"status {actual_words}, the reference {expected_words}"
    if actual.changed:
        return f"raised, but {actual.changed} had been written"
    return None
