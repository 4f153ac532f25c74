"""Cases of the round's own kernels, R1 onwards."""

from __future__ import annotations

from aerie.kernels.cases.case import Case
from aerie.kernels.cases.round_rows import ROW_CASES

ROUND_CASES: tuple[Case, ...] = (*ROW_CASES,)
