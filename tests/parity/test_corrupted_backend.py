"""Parity bites: a backend with one wrong element in one array is caught, for every array."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from aerie.kernels import catalogue
from aerie.kernels.card import EXACT, Port, Ulps
from aerie.kernels.cases import Case, cases_for
from aerie.kernels.registry import Kernel, Kernels
from aerie.parity.run import CaseResult, run_parity
from tests.parity.backend import kernels_of

N_CASES = 4  # cases tried per array; each has the array, not empty, and is not refused


def bent(value: Any, place: int, tolerance: Ulps) -> Any:
    """The value with one element wrong by the least that may not pass."""
    if isinstance(value, int):
        return value + 1
    ulps = tolerance.cpu
    flat = value.copy().reshape(-1)
    if flat.dtype == bool:
        flat[place] = not flat[place]
    elif tolerance.of_largest:
        largest = np.abs(flat).max()
        flat[place] += (ulps + 2) * np.spacing(largest)
    elif flat.dtype.kind == "f":
        bits = flat.view(f"i{flat.dtype.itemsize}")
        bits[place] += ulps + 1
    else:
        flat[place] += 1
    return flat.reshape(value.shape)


class BentKernel(Kernel):
    """A kernel that spoils one element of one of its arrays after the work is done."""

    def __init__(self, kernel: Kernel, port: Port, is_last: bool) -> None:
        self.card = kernel.card
        self._honest, self._port = kernel, port
        self._place = -1 if is_last else 0

    def __call__(self, **inputs: Any) -> Any:
        result = self._honest(**inputs)
        name, ulps = self._port.name, self.card.tolerance(self._port.name)
        if self._port.kind == "out":
            return result._replace(**{name: bent(getattr(result, name), self._place, ulps)})
        inputs[name][...] = bent(inputs[name], self._place, ulps)
        return result


def corrupted(kernel: str, port: Port, is_last: bool) -> Kernels:
    honest = kernels_of("reference")
    wrong = BentKernel(honest[kernel], port, is_last)
    return Kernels("corrupted", "cpu", "raise", {**honest, kernel: wrong})


def cases_with(kernel: str, port: Port) -> Iterator[Case]:
    """Accepted cases in which the array exists and has an element to spoil."""
    for case in cases_for(kernel):
        if case.expects:
            continue
        inputs = case.build()
        result = kernels_of("reference")[kernel](**inputs)
        value = getattr(result, port.name) if port.kind == "out" else inputs.get(port.name)
        if isinstance(value, int) or (value is not None and np.size(value)):
            yield case


ARRAYS = [
    pytest.param(card.name, port, id=f"{card.name}-{port.name}")
    for card in catalogue().values()
    for port in card.ports
    if port.kind != "in"
]


@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("kernel", "port"), ARRAYS)
def test_one_wrong_element_is_caught(kernel: str, port: Port, is_last: bool) -> None:
    cases = list(islice(cases_with(kernel, port), N_CASES))
    assert cases, f"no case exercises {port.name}"
    report = run_parity(corrupted(kernel, port, is_last), kernels_of("reference"), cases)
    missed = [result.case for result in report.results if result.ok]
    assert not missed
    assert all(port.name in (result.reason or "") for result in report.results)


class LeakyKernel(BentKernel):
    """A kernel that writes before it refuses."""

    def __call__(self, **inputs: Any) -> Any:
        inputs[self._port.name][...] = bent(inputs[self._port.name], 0, EXACT)
        return self._honest(**inputs)


class CredulousKernel(BentKernel):
    """A kernel that answers what it should refuse with the result of an accepted case."""

    def __call__(self, **inputs: Any) -> Any:
        accepted = next(case for case in cases_for(self.card.name) if not case.expects)
        return self._honest(**accepted.build())


def judge(kind: type[BentKernel], kernel: str, port: Port, case: Case) -> CaseResult:
    honest = kernels_of("reference")
    wrong = kind(honest[kernel], port, is_last=False)
    kernels = Kernels("corrupted", "cpu", "raise", {**honest, kernel: wrong})
    (result,) = run_parity(kernels, honest, [case]).results
    return result


def first_refused(kernel: str, array: str) -> Case:
    return next(
        case
        for case in cases_for(kernel)
        if case.expects and "dtype" not in case.name and np.size(case.build().get(array, ())) > 0
    )


WRITERS = [card.name for card in catalogue().values() if card.written and card.refusals]


@pytest.mark.parametrize("kernel", WRITERS)
def test_writing_before_refusing_is_caught(kernel: str) -> None:
    port = next(port for port in catalogue()[kernel].ports if port.kind == "inout")
    result = judge(LeakyKernel, kernel, port, first_refused(kernel, port.name))
    assert not result.ok
    assert f"{port.name} had been written" in (result.reason or "")


@pytest.mark.parametrize("kernel", [card.name for card in catalogue().values() if card.refusals])
def test_not_refusing_is_caught(kernel: str) -> None:
    port = catalogue()[kernel].outputs[0]
    refused = next(case for case in cases_for(kernel) if case.expects)
    assert not judge(CredulousKernel, kernel, port, refused).ok
