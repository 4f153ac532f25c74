"""A wrong call raises the named error with the value and the limit, in its fields and its text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aerie.errors import KernelBoundsError, KernelDtypeError, UnknownNameError, UsageError
from aerie.kernels import catalogue
from aerie.kernels.formula import Formula
from aerie.kernels.status import MEANINGS, Status
from tests.parity.backend import each_backend, kernels_of, run, run_with_status
from tests.unit.kernels.examples import EXAMPLES
from tests.unit.kernels.spoiled import ALL, BY_DATA, HOST, Spoiled

each_example = pytest.mark.parametrize("example", EXAMPLES)
OTHER_DTYPES = ("complex64", "int16")


def call(backend: str, spoiled: Spoiled) -> Any:
    return kernels_of(backend)[spoiled.kernel](**spoiled.inputs())


@each_backend
@each_example
def test_example_is_accepted(backend: str, example: str) -> None:
    kernel, build = EXAMPLES[example]
    found = run(backend, kernel, **build())
    assert not getattr(found, "status", np.zeros(1)).any()


def test_every_kernel_has_an_example_and_a_mistake() -> None:
    assert {kernel for kernel, _ in EXAMPLES.values()} == set(catalogue())
    assert {spoiled.kernel for spoiled in ALL} == set(catalogue())


@each_backend
@pytest.mark.parametrize("spoiled", ALL, ids=str)
def test_error_names_value_and_limit(backend: str, spoiled: Spoiled) -> None:
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


@each_backend
@pytest.mark.parametrize("spoiled", HOST, ids=str)
def test_host_checks_raise_in_either_mode(backend: str, spoiled: Spoiled) -> None:
    with pytest.raises(KernelBoundsError):
        run_with_status(backend, spoiled.kernel, **spoiled.inputs())


@each_backend
@pytest.mark.parametrize("spoiled", BY_DATA, ids=str)
def test_status_word_says_the_same(backend: str, spoiled: Spoiled) -> None:
    found = run_with_status(backend, spoiled.kernel, **spoiled.inputs())
    assert tuple(found.status.tolist()) == spoiled.status


@each_backend
@each_example
def test_other_dtypes_are_refused(backend: str, example: str) -> None:
    kernel, build = EXAMPLES[example]
    for port in catalogue()[kernel].inputs:
        if port.name not in build():
            continue
        for dtype in OTHER_DTYPES:
            inputs = build()
            inputs[port.name] = inputs[port.name].astype(dtype)
            with pytest.raises(KernelDtypeError) as caught:
                kernels_of(backend)[kernel](**inputs)
            assert (caught.value.value, caught.value.limit) == (dtype, port.dtypes)
            for name in (port.name, dtype, *port.dtypes):
                assert name in str(caught.value)


@each_backend
@each_example
def test_another_number_of_axes_is_refused(backend: str, example: str) -> None:
    kernel, build = EXAMPLES[example]
    for port in catalogue()[kernel].inputs:
        if port.name not in build():
            continue
        inputs = build()
        inputs[port.name] = inputs[port.name][None]
        with pytest.raises(KernelBoundsError) as caught:
            kernels_of(backend)[kernel](**inputs)
        n_axes = len(port.shape)
        assert (caught.value.value, caught.value.limit) == (n_axes + 1, n_axes)
        assert port.name in str(caught.value)


@each_backend
@each_example
def test_missing_and_unknown_arguments(backend: str, example: str) -> None:
    kernel, build = EXAMPLES[example]
    card = catalogue()[kernel]
    for name in card.required:
        inputs = build()
        del inputs[name]
        with pytest.raises(UsageError, match=name):
            kernels_of(backend)[kernel](**inputs)
    name = card.inputs[0].name
    with pytest.raises(UnknownNameError) as caught:
        kernels_of(backend)[kernel](**build(), **{f"{name}x": 1})
    assert name in caught.value.near


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
@pytest.mark.parametrize(("example", "changes", "text"), COMBINATIONS)
def test_impossible_combinations(
    backend: str, example: str, changes: dict[str, Any], text: str
) -> None:
    kernel, build = EXAMPLES[example]
    with pytest.raises(UsageError, match=text):
        kernels_of(backend)[kernel](**(build() | changes))


def test_every_status_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Status) - {Status.OK}


def test_cards_refuse_with_known_limits() -> None:
    """A refusal's limit is a number or a size that the binding knows."""
    for card in catalogue().values():
        known = {axis.name for axis in card.axes} | {scalar.name for scalar in card.scalars}
        for refusal in card.refusals:
            assert Formula(refusal.limit).names <= known, (card.name, refusal)
