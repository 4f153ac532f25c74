"""Batches in which every request has its own options: each backend gives the reference's tokens."""

from __future__ import annotations

import numpy as np
import pytest

import tests.interpreted  # noqa: F401
from aerie.kernels.cases.sampling_mixes import mixed_call
from tests.parity.backend import run_with_status, runnable

VOCABULARIES = (1, 2, 3, 5, 17, 33, 50, 64, 100)
KERNEL = "sample_target_tokens"


def assert_agrees(backend: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    call = mixed_call(rng, int(rng.choice(VOCABULARIES)), n_requests=int(rng.integers(1, 5)))
    expected = run_with_status("reference", KERNEL, **call)
    found = run_with_status(backend, KERNEL, **call)
    assert found.target_tokens.tolist() == expected.target_tokens.tolist(), seed
    assert found.status.tolist() == expected.status.tolist() == [0] * len(found.status), seed


@pytest.mark.parametrize("backend", [runnable(name) for name in ("numpy", "pytorch", "hls")])
def test_any_mix_of_options(backend: str) -> None:
    for seed in range(100):
        assert_agrees(backend, seed)
