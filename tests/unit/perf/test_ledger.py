"""The ledger equals the bytes counted at the ports of C-simulation, on every parity case."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from aerie.errors import KernelError
from aerie.kernels.arrays import as_numpy
from aerie.kernels.binding import bind
from aerie.kernels.cases import Case, cases_for
from aerie.kernels.hls.meters import CountedKernel, PortBytes, counted_kernel
from aerie.kernels.hls.table import PORTED
from aerie.kernels.registry import load
from aerie.perf.ledger import ledger, total

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (apt-get install g++)")


def accounted(case: Case, kernel: CountedKernel) -> tuple[dict[str, PortBytes], ...] | None:
    """The ledger's bytes and the counted ones, or None where the hardware refuses the call."""
    inputs = case.build()
    try:
        bind(kernel.card, inputs)
    except KernelError:
        return None
    # The definition decides what a call returns; the hardware only what it moved.
    reference = load("reference", data_errors="status")[case.kernel]
    outputs: dict[str, Any] = {
        name: as_numpy(value) for name, value in reference(**case.build())._asdict().items()
    }
    return ledger(kernel.card, inputs, outputs), kernel(**inputs).ports


@pytest.mark.parametrize("name", PORTED)
def test_ledger_equals_the_counters(name: str) -> None:
    kernel = counted_kernel(name)
    wrong = []
    n_counted = 0
    for case in cases_for(name):
        both = accounted(case, kernel)
        if both is None:
            continue
        n_counted += 1
        written_down, counted = both
        wrong += [
            f"{case.name}: {port}: ledger {written_down[port]}, counted {counted[port]}"
            for port in counted
            if written_down[port] != counted[port]
        ]
    assert not wrong, "\n".join(wrong)
    assert n_counted >= 20


def test_a_second_look_is_charged() -> None:
    """A counter that misses an access would make every design look good."""
    case = next(case for case in cases_for("calculate_work_deltas") if "empty" not in case.name)
    counted = counted_kernel(case.kernel)(**case.build())
    scores = case.build()["work_scores"]
    assert counted.ports["work_scores"] == PortBytes(scores.nbytes, 0)
    assert total(counted.ports).written == counted.results["G"].nbytes
