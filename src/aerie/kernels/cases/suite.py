"""The suite of cases: every family's cases, by kernel."""

from __future__ import annotations

from aerie.errors import UnknownNameError
from aerie.kernels.cases.case import Case
from aerie.kernels.cases.commit import COMMIT_CASES
from aerie.kernels.cases.growth import GROWTH_CASES
from aerie.kernels.cases.layout import LAYOUT_CASES
from aerie.kernels.cases.memory import MEMORY_CASES
from aerie.kernels.cases.replay import REPLAY_CASES
from aerie.kernels.cases.round import ROUND_CASES
from aerie.kernels.cases.verdict import VERDICT_CASES


def all_cases() -> tuple[Case, ...]:
    """Every case, family by family; nothing is built until a case's `build` is called."""
    return (
        *GROWTH_CASES,
        *LAYOUT_CASES,
        *VERDICT_CASES,
        *COMMIT_CASES,
        *MEMORY_CASES,
        *REPLAY_CASES,
        *ROUND_CASES,
    )


def cases_for(kernel_name: str) -> tuple[Case, ...]:
    """The cases of one kernel; a wrong name gets the nearest right ones."""
    found = tuple(case for case in all_cases() if case.kernel == kernel_name)
    if not found:
        raise UnknownNameError("kernel", kernel_name, {case.kernel for case in all_cases()})
    return found
