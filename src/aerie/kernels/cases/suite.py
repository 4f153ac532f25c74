"""The suite of cases: every family's cases, by kernel."""

from __future__ import annotations

from aerie.errors import UnknownNameError
from aerie.kernels.cases.case import Case
from aerie.kernels.cases.commit import COMMIT_CASES
from aerie.kernels.cases.experts import EXPERT_CASES
from aerie.kernels.cases.growth import GROWTH_CASES
from aerie.kernels.cases.layout import LAYOUT_CASES
from aerie.kernels.cases.memory import MEMORY_CASES
from aerie.kernels.cases.near_ties import NEAR_CASES
from aerie.kernels.cases.partial_kv import PARTIAL_CASES
from aerie.kernels.cases.products import PRODUCT_CASES
from aerie.kernels.cases.replay import REPLAY_CASES
from aerie.kernels.cases.round_choice import CHOICE_CASES
from aerie.kernels.cases.round_draft import DRAFT_CASES
from aerie.kernels.cases.round_rows import ROW_CASES
from aerie.kernels.cases.round_text import TEXT_CASES
from aerie.kernels.cases.round_verdict import VERDICT_STATE_CASES
from aerie.kernels.cases.scores import MASK_CASES, SCORE_CASES
from aerie.kernels.cases.spliced_run import SPLICED_CASES
from aerie.kernels.cases.unpack import UNPACK_CASES
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
        *ROW_CASES,
        *DRAFT_CASES,
        *CHOICE_CASES,
        *VERDICT_STATE_CASES,
        *TEXT_CASES,
        *SCORE_CASES,
        *NEAR_CASES,
        *MASK_CASES,
        *PARTIAL_CASES,
        *SPLICED_CASES,
        *PRODUCT_CASES,
        *UNPACK_CASES,
        *EXPERT_CASES,
    )


def cases_for(kernel_name: str) -> tuple[Case, ...]:
    """The cases of one kernel; a wrong name gets the nearest right ones."""
    found = tuple(case for case in all_cases() if case.kernel == kernel_name)
    if not found:
        raise UnknownNameError("kernel", kernel_name, {case.kernel for case in all_cases()})
    return found
