"""Every case of every kernel on each backend against the reference."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from aerie.errors import KernelError
from aerie.kernels import catalogue, load
from aerie.kernels.cases import Case, all_cases, cases_for
from aerie.parity.run import run_parity
from tests.parity.backend import kernels_of, runnable

LEAST_KERNELS, LEAST_CASES, LEAST_PER_KERNEL = 13, 400, 25


def test_there_are_enough_cases() -> None:
    counts = Counter(case.kernel for case in all_cases())
    assert set(counts) == set(catalogue())
    assert len(counts) >= LEAST_KERNELS
    assert sum(counts.values()) >= LEAST_CASES
    assert min(counts.values()) >= LEAST_PER_KERNEL, counts


def point(case: Case) -> tuple[object, ...]:
    """What a case is apart from the numbers in its arrays: shapes, dtypes, scalars, features."""
    inputs = sorted(case.build().items())
    sizes = [(n, v.shape, v.dtype) if isinstance(v, np.ndarray) else (n, v) for n, v in inputs]
    return (frozenset(case.features), *sizes)


def test_no_case_is_there_twice() -> None:
    """Names are unique, and a case is more than another one with other random numbers."""
    for kernel in catalogue():
        names = Counter(case.name for case in cases_for(kernel))
        points = Counter(point(case) for case in cases_for(kernel))
        assert max(names.values()) == 1, (kernel, names.most_common(1))
        assert max(points.values()) == 1, (kernel, points.most_common(1))


each_other = pytest.mark.parametrize(
    "backend", [runnable(name) for name in ("numpy", "pytorch", "hls")]
)


@each_other
@pytest.mark.parametrize("data_errors", ["raise", "status"])
@pytest.mark.parametrize("kernel", catalogue())
def test_backend_agrees_with_the_reference(kernel: str, data_errors: str, backend: str) -> None:
    report = run_parity(
        load(backend, data_errors=data_errors),
        load("reference", data_errors=data_errors),
        cases_for(kernel),
    )
    assert len(report.results) >= LEAST_PER_KERNEL
    assert not report.failed, "\n".join(f"{r.case}: {r.reason}" for r in report.failed)


def refusal(backend: str, case: Case) -> tuple[object, object]:
    """Value and limit of the error a refused case raises."""
    assert case.expects is not None
    with pytest.raises(case.expects) as caught:
        kernels_of(backend)[case.kernel](**case.build())
    assert isinstance(caught.value, KernelError)
    return caught.value.value, caught.value.limit


@each_other
@pytest.mark.parametrize("kernel", catalogue())
def test_refusals_name_the_same_value_and_limit(kernel: str, backend: str) -> None:
    refused = [case for case in cases_for(kernel) if case.expects]
    named = {case.name: (refusal("reference", case), refusal(backend, case)) for case in refused}
    assert {name: both for name, both in named.items() if both[0] != both[1]} == {}
