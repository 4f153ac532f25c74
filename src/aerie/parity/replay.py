"""Replays dumps on a backend and compares with what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from aerie.errors import KernelBoundsError, KernelError
from aerie.kernels.arrays import on_device
from aerie.kernels.binding import bind
from aerie.kernels.card import Card
from aerie.kernels.registry import Kernels
from aerie.parity.compare import allowed_ulps, compare_within, first_change
from aerie.parity.dump import Dump, read_dump
from aerie.parity.run import CaseResult, ParityReport


def replay_dumps(
    kernels: Kernels,
    paths: Iterable[Path],
    on_result: Callable[[CaseResult], None] = lambda result: None,
) -> ParityReport:
    """Replay files on kernels that were loaded with `data_errors="status"`."""
    results = []
    for path in paths:
        # Files of different captures have the same names; their folders tell them apart.
        result = replay_dump(kernels, read_dump(path), f"{path.parent.name}/{path.stem}")
        on_result(result)
        results.append(result)
    return ParityReport(kernels.backend, kernels.device, tuple(results))


def replay_dump(kernels: Kernels, dump: Dump, name: str) -> CaseResult:
    """One recorded call again: outputs, arrays written in place, refusals, untouched state."""
    kernel = dump.card.name
    inputs = {n: on_device(value, kernels.device) for n, value in dump.arguments().items()}
    try:
        result = kernels[kernel](**inputs)
    except KernelError as error:
        reason = _refusal_difference(kernels[kernel].card, dump, error)
        changed = first_change(dump.inputs, inputs)
        if reason is None and changed:
            reason = f"raised, but {changed} had been written"
        return CaseResult(kernel, name, reason is None, reason, 0)
    except Exception as crash:
        # A backend under construction may fail in any way; the other dumps still count.
        return CaseResult(kernel, name, False, f"raised {crash!r}", 0)
    if not dump.outputs:
        reason = f"returned, the record says {dump.outcome}"
        return CaseResult(kernel, name, False, reason, 0)
    actual = {**inputs, **result._asdict()}
    found = compare_within(dump.card, dump.outputs, actual, lambda o: _allowed(kernels, dump, o))
    return CaseResult(kernel, name, found.reason is None, found.reason, found.ulps)


def _refusal_difference(own: Card, dump: Dump, error: KernelError) -> str | None:
    raised = type(error).__name__
    if raised == dump.outcome or (raised == "KernelBoundsError" and _is_beyond(own, dump)):
        return None
    return f"raised {error!r}, the record says {dump.outcome}"


def _is_beyond(own: Card, dump: Dump) -> bool:
    """Whether the call passes limits of the backend's own: then it must refuse, and has."""
    try:
        bind(own, dump.arguments())
    except KernelBoundsError:
        return own.limits != dump.card.limits
    return False


def granted_ulps(kernels: Kernels, dump: Dump) -> int:
    """How far any output of a replay may be from the record."""
    return max((_allowed(kernels, dump, port.name) for port in dump.card.outputs), default=0)


def _allowed(kernels: Kernels, dump: Dump, output: str) -> int:
    """Both sides may be off the reference, in opposite directions."""
    own = allowed_ulps(dump.card, output, not kernels.device.startswith("cpu"))
    recorder = dump.provenance["backend"]
    recorded = allowed_ulps(dump.card, output, not str(dump.provenance["device"]).startswith("cpu"))
    return sum(
        ulps for name, ulps in ((kernels.backend, own), (recorder, recorded)) if name != "reference"
    )
