"""Cases that Triton's interpreter runs in CI; shared, not a test itself."""

from __future__ import annotations

from functools import cache

import numpy as np

from aerie.errors import AerieError
from aerie.kernels import catalogue
from aerie.kernels.binding import bind
from aerie.kernels.cases import Case, cases_for
from aerie.kernels.triton_gpu import KERNELS

# The interpreter costs about a millisecond per operation of a program.
MOST_REQUESTS, MOST_ROWS, MOST_ENTRIES = 9, 20, 2_000


def is_small(case: Case) -> bool:
    """Whether the interpreter is done with it in a moment."""
    arrays = [value for value in case.build().values() if isinstance(value, np.ndarray)]
    lengths = [array.shape[0] for array in arrays if array.ndim]
    is_short = min(lengths, default=0) <= MOST_REQUESTS and max(lengths, default=0) <= MOST_ROWS
    return is_short and sum(array.size for array in arrays) <= MOST_ENTRIES


def is_launched(case: Case) -> bool:
    """Whether a Triton kernel sees it: PyTorch does not get it, and the host does not refuse."""
    covers, inputs = KERNELS[case.kernel].covers, case.build()
    if covers is not None and not covers(inputs):
        return False
    try:
        bind(catalogue()[case.kernel], inputs)
    except AerieError:
        return False
    return True


@cache
def small_cases(kernel: str) -> tuple[Case, ...]:
    """The small cases that a Triton kernel is launched for."""
    return tuple(case for case in cases_for(kernel) if is_small(case) and is_launched(case))
