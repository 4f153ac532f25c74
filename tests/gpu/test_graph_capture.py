"""Every kernel of the GPU backends runs without synchronising, and inside a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from aerie.kernels import catalogue, load
from aerie.kernels.cases import cases_for
from tests.gpu.capture import DEVICE, refusing_to_synchronise, run_case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", ["pytorch", "triton"])
@pytest.mark.parametrize("kernel", catalogue())
def test_captured_and_replayed_as_the_reference(kernel: str, backend: str) -> None:
    kernels = load(backend, DEVICE, data_errors="status")
    reference = load("reference", data_errors="status")
    outcomes = [run_case(kernels, reference, case) for case in cases_for(kernel)]
    wrong = [f"{outcome.case}: {outcome.reason}" for outcome in outcomes if outcome.reason]
    assert not wrong, "\n".join(wrong)
    assert all(outcome.is_captured or outcome.is_refused_on_host for outcome in outcomes)
    assert any(outcome.is_captured for outcome in outcomes)


def test_synchronising_is_noticed() -> None:
    """The switch that the test above relies on does refuse a read of the device."""
    flags = torch.ones(3, device=DEVICE)
    with refusing_to_synchronise(), pytest.raises(RuntimeError, match="synchroniz"):
        flags.sum().item()
