"""Parity cases as dumps: the adversarial suite for test benches that have no Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aerie.errors import KernelError
from aerie.kernels.arrays import as_numpy
from aerie.kernels.cases.case import Case
from aerie.kernels.registry import Kernels
from aerie.parity.dump import SUFFIX, Dump, outcome_of, resolved_scalars, write_dump


def dump_cases(
    reference: Kernels, cases: Iterable[Case], directory: Path, provenance: Mapping[str, Any]
) -> int:
    """Write what the reference makes of every case; returns how many files were written.

    `reference` was loaded with `data_errors="status"`, so that refusals are words in the result.
    """
    numbers: Counter[str] = Counter()
    for case in cases:
        origin = {**provenance, "source": f"case {case.name}"}
        path = directory / f"{case.kernel}-{numbers[case.kernel]:04d}{SUFFIX}"
        write_dump(path, dump_case(reference, case, origin))
        numbers[case.kernel] += 1
    return numbers.total()


def dump_case(reference: Kernels, case: Case, provenance: Mapping[str, Any]) -> Dump:
    """One case with the reference's answer to it."""
    card = reference[case.kernel].card
    call = case.build()
    given = {name: value for name, value in call.items() if hasattr(value, "dtype")}
    inputs = {name: array.copy() for name, array in given.items()}
    scalars = resolved_scalars(card, call)
    try:
        result = reference[case.kernel](**call)
    except KernelError as error:
        return Dump(card, inputs, scalars, {}, type(error).__name__, provenance)
    outputs = {name: as_numpy(value) for name, value in result._asdict().items()}
    outputs |= {name: given[name] for name in card.written if name in given}
    return Dump(card, inputs, scalars, outputs, outcome_of(outputs), provenance)
