"""A wrong call raises the named error with the value and the limit, in its fields and its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aerie.errors import KernelBoundsError, KernelDtypeError, UnknownNameError, UsageError
from aerie.kernels import catalogue
from aerie.kernels.card import Port
from aerie.kernels.formula import Formula
from aerie.kernels.kernel import Kernel
from aerie.kernels.status import MEANINGS, Status
from tests.parity.backend import each_backend, kernels_of, run, run_with_status
from tests.unit.kernels.examples import EXAMPLES, Inputs
from tests.unit.kernels.findings import Findings
from tests.unit.kernels.spoiled import ALL, Spoiled

each_kernel = pytest.mark.parametrize("kernel", catalogue())
OTHER_DTYPES = ("float64", "int16")


def call(backend: str, spoiled: Spoiled) -> Any:
    return kernels_of(backend)[spoiled.kernel](**spoiled.inputs())


def examples_of(kernel: str) -> list[tuple[str, Callable[[], Inputs]]]:
    return [(name, build) for name, (owner, build) in EXAMPLES.items() if owner == kernel]


def test_findings_name_every_case_that_fails() -> None:
    with pytest.raises(pytest.fail.Exception) as caught, Findings() as found:
        for name, error in (("first", ValueError), ("second", ValueError), ("third", TypeError)):
            with found.case(name), pytest.raises(TypeError):
                raise error("wrong")
    assert "first" in str(caught.value) and "second" in str(caught.value)
    assert "third" not in str(caught.value)


def test_every_kernel_has_an_example_and_a_mistake() -> None:
    assert {kernel for kernel, _ in EXAMPLES.values()} == set(catalogue())
    assert {spoiled.kernel for spoiled in ALL} == set(catalogue())


@each_backend
@each_kernel
def test_error_names_value_and_limit(backend: str, kernel: str) -> None:
    with Findings() as found:
        for name, build in examples_of(kernel):
            with found.case(f"{name}: as it is"):
                result = run(backend, kernel, **build())
                assert not getattr(result, "status", np.zeros(1)).any()
        for spoiled in (entry for entry in ALL if entry.kernel == kernel):
            with found.case(spoiled):
                assert_error_names_value_and_limit(backend, spoiled)
            with found.case(f"{spoiled}, as a status word"):
                assert_status_word_says_the_same(backend, spoiled)
        assert_every_argument_is_looked_at(found, kernels_of(backend)[kernel])


def assert_error_names_value_and_limit(backend: str, spoiled: Spoiled) -> None:
    with pytest.raises(spoiled.error) as caught:
        call(backend, spoiled)
    error = caught.value
    assert type(error) is spoiled.error
    assert (error.value, error.limit) == (spoiled.value, spoiled.limit)
    assert spoiled.kernel in str(error)
    assert str(spoiled.value) in str(error)
    assert spoiled.limit is None or str(spoiled.limit) in str(error)
    if spoiled.status is not None:
        assert tuple(error.status) == spoiled.status


def assert_status_word_says_the_same(backend: str, spoiled: Spoiled) -> None:
    """What the host finds raises in either mode; what the data show is a word."""
    if spoiled.status is None:
        with pytest.raises(KernelBoundsError):
            run_with_status(backend, spoiled.kernel, **spoiled.inputs())
    else:
        found = run_with_status(backend, spoiled.kernel, **spoiled.inputs())
        assert tuple(found.status.tolist()) == spoiled.status


def assert_every_argument_is_looked_at(found: Findings, call: Kernel) -> None:
    """Each of them in another dtype, with another number of axes, or not at all."""
    card = catalogue()[call.card.name]
    for example, build in examples_of(card.name):
        for port in (port for port in card.inputs if port.name in build()):
            for dtype in OTHER_DTYPES:
                with found.case(f"{example}: {port.name} as {dtype}"):
                    assert_dtype_is_refused(call, build(), port, dtype)
            with found.case(f"{example}: {port.name} with an axis more"):
                assert_axes_are_refused(call, build(), port)
        for name in card.required:
            with found.case(f"{example}: no {name}"):
                inputs = build()
                del inputs[name]
                with pytest.raises(UsageError, match=name):
                    call(**inputs)
        name = card.inputs[0].name
        with found.case(f"{example}: {name}x"), pytest.raises(UnknownNameError) as caught:
            call(**build(), **{f"{name}x": 1})
        with found.case(f"{example}: the name nearest to {name}x"):
            assert name in caught.value.near


def assert_dtype_is_refused(call: Kernel, inputs: Inputs, port: Port, dtype: str) -> None:
    inputs[port.name] = inputs[port.name].astype(dtype)
    with pytest.raises(KernelDtypeError) as caught:
        call(**inputs)
    assert (caught.value.value, caught.value.limit) == (dtype, port.dtypes)
    for name in (port.name, dtype, *port.dtypes):
        assert name in str(caught.value)


def assert_axes_are_refused(call: Kernel, inputs: Inputs, port: Port) -> None:
    inputs[port.name] = inputs[port.name][None]
    with pytest.raises(KernelBoundsError) as caught:
        call(**inputs)
    n_axes = len(port.shape)
    assert (caught.value.value, caught.value.limit) == (n_axes + 1, n_axes)
    assert port.name in str(caught.value)


COMBINATIONS = [
    ("coins", {"target_tokens": np.zeros(10, np.int64)}, "exactly one"),
    ("coins", {"coins": None}, "exactly one"),
    ("coins", {"coins": None, "target_probas": None}, "exactly one"),
    ("kv_lists", {"fed_slots": None}, "belong together"),
    ("target_tokens", {"ancestor_bits": None}, "belong together"),
    ("draft_replay", {"buckets": (4, 2)}, "ascending"),
    ("draft_replay", {"buckets": ()}, "ascending"),
    ("store", {"compat": 1}, "must be bool"),
    ("store", {"verify_num": 6.0}, "must be int"),
    ("store", {"verify_num": True}, "must be int"),
    ("deltas", {"work_scores": [[1.0]]}, "must be an array"),
]


@each_backend
def test_impossible_combinations(backend: str) -> None:
    with Findings() as found:
        for example, changes, text in COMBINATIONS:
            kernel, build = EXAMPLES[example]
            with found.case(f"{kernel} {changes}"), pytest.raises(UsageError, match=text):
                kernels_of(backend)[kernel](**(build() | changes))


def test_every_status_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Status) - {Status.OK}


def test_cards_refuse_with_known_limits() -> None:
    """A refusal's limit is a number or a size that the binding knows."""
    for card in catalogue().values():
        known = {axis.name for axis in card.axes} | {scalar.name for scalar in card.scalars}
        for refusal in card.refusals:
            assert Formula(refusal.limit).names <= known, (card.name, refusal)
