"""Every kernel of the Triton backend against the reference, in Triton's interpreter on a CPU."""

from __future__ import annotations

from typing import Any

import pytest

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels import catalogue, load
from aerie.kernels.cases import Case, cases_for
from aerie.kernels.registry import backend_info, why_unavailable
from aerie.kernels.triton_gpu import KERNELS, refuse_device
from aerie.parity.run import run_parity
from tests.parity.triton_cases import small_cases

LEAST_CASES = 15

pytestmark = [
    pytest.mark.skipif(refuse_device("cpu") is not None, reason=f"triton: {refuse_device('cpu')}"),
    # The interpreter computes with NumPy, which warns where a GPU does not: x / T past float32.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


def assert_agrees(data_errors: str, cases: list[Case]) -> None:
    """Every case gives what the reference gives, or is refused as it refuses it."""
    report = run_parity(
        load("triton", data_errors=data_errors), load("reference", data_errors=data_errors), cases
    )
    assert not report.failed, "\n".join(f"{r.case}: {r.reason}" for r in report.failed)


def test_the_backend_is_available() -> None:
    assert why_unavailable(backend_info("triton")) is None
    assert set(KERNELS) <= set(catalogue())


@pytest.mark.parametrize("kernel", KERNELS)
def test_triton_agrees_with_the_reference_on_small_cases(kernel: str) -> None:
    """Refused ones as status words: the errors they become on a CPU are made by no backend."""
    small = small_cases(kernel)
    assert len(small) >= LEAST_CASES
    assert_agrees("raise", [case for case in small if not case.expects])
    assert_agrees("status", [case for case in small if case.expects])


@pytest.mark.slow
@pytest.mark.parametrize("data_errors", ["raise", "status"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_triton_agrees_with_the_reference(kernel: str, data_errors: str) -> None:
    assert_agrees(data_errors, list(cases_for(kernel)))


def test_an_option_that_is_not_covered_goes_to_pytorch() -> None:
    """A map, a filter and the coins are the base's, with the same results."""
    for kernel, feature in (
        ("draft_tree_layer_score_index_gen_op", "hot_token_id"),
        ("sample_target_tokens", "top_p"),
        ("draft_tree_reject_sample", "coins"),
    ):
        covers = KERNELS[kernel].covers
        assert covers is not None
        passed: list[dict[str, Any]] = [case.build() for case in cases_for(kernel)]
        assert not any(covers(inputs) for inputs in passed if feature in inputs)
        assert any(covers(inputs) for inputs in passed)
