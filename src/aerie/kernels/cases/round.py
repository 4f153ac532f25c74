"""Cases of the round's own kernels, R1 onwards."""

from __future__ import annotations

from aerie.kernels.cases.case import Case
from aerie.kernels.cases.experts import EXPERT_CASES
from aerie.kernels.cases.masks import MASK_CASES
from aerie.kernels.cases.near_ties import NEAR_CASES
from aerie.kernels.cases.partial_kv import PARTIAL_CASES
from aerie.kernels.cases.products import PRODUCT_CASES
from aerie.kernels.cases.round_choice import CHOICE_CASES
from aerie.kernels.cases.round_draft import DRAFT_CASES
from aerie.kernels.cases.round_rows import ROW_CASES
from aerie.kernels.cases.round_text import TEXT_CASES
from aerie.kernels.cases.round_verdict import VERDICT_STATE_CASES
from aerie.kernels.cases.scores import SCORE_CASES
from aerie.kernels.cases.spliced_run import SPLICED_CASES
from aerie.kernels.cases.unpack import UNPACK_CASES

ROUND_CASES: tuple[Case, ...] = (
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
