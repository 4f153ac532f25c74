"""A slice of the fuzzer: mutated calls give the reference's result or its named error.

`python -m scripts.fuzz_kernels` runs as many as you like, and `hls` under the sanitizers; logs of
long runs are reports/raw/kernel_fuzz.log and reports/raw/hls_sanitized_fuzz.log.
"""

from __future__ import annotations

import pytest

import tests.interpreted  # noqa: F401
from aerie.kernels import catalogue
from tests.parity.backend import kernels_of, runnable
from tests.parity.fuzz import Loaded, run_calls
from tests.parity.mutations import mutated_call
from tests.parity.tensor_mutations import MUTATIONS

SEED = 17
# Backend, calls of each kernel, and the most entries of one: the interpreter is slow.
SLICES = (("numpy", 40, 3_000), ("pytorch", 40, 3_000), ("hls", 40, 3_000), ("triton", 4, 150))


def both_modes(backend: str) -> Loaded:
    return {mode: kernels_of(backend, mode) for mode in ("raise", "status")}


@pytest.mark.parametrize(
    ("backend", "n_calls", "most"),
    [
        pytest.param(*runnable(name).values, n, m, marks=runnable(name).marks)
        for name, n, m in SLICES
    ],
)
def test_mutated_calls_agree(backend: str, n_calls: int, most: int) -> None:
    calls = (
        mutated_call(kernel, SEED, index, MUTATIONS, most)
        for kernel in catalogue()
        for index in range(n_calls)
    )
    tally = run_calls(calls, [both_modes(backend)], both_modes("reference"))
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.outcomes["result"] > tally.outcomes.total() / 5
    assert {kernel for kernel, _ in tally.calls} == set(catalogue())
    assert {mutation for _, mutation in tally.calls} == set(MUTATIONS)
