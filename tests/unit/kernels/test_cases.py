"""The suite of cases: enough of them, all different, all legal or refused for the right reason."""

import time
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from aerie.errors import KernelBoundsError, KernelDtypeError, KernelError, UnknownNameError
from aerie.kernels import load
from aerie.kernels.binding import bind
from aerie.kernels.card import REQUIRED, Axis, Card, Limit, Scalar
from aerie.kernels.cases import Case, all_cases, cases_for
from aerie.kernels.catalogue import catalogue
from aerie.kernels.status import Status

CARDS = catalogue()
KERNELS = tuple(CARDS)
by_kernel = pytest.mark.parametrize("kernel", KERNELS)

# One past these sizes would need an array of more than 20 MB.
TOO_LARGE_TO_EXCEED = {
    ("assign_req_to_token_pool_operator", "C"),
    ("place_verify_rows", "C"),
    ("place_prompt_rows", "C"),
    ("place_draft_levels", "C"),
}


def shapes(inputs: dict[str, Any]) -> tuple[object, ...]:
    """Names, dtypes and shapes of arrays; names and values of host scalars."""
    return tuple(
        (name, str(value.dtype), value.shape) if hasattr(value, "dtype") else (name, value)
        for name, value in sorted(inputs.items())
    )


@cache
def host_errors(kernel: str) -> tuple[tuple[Case, KernelError], ...]:
    """Cases refused before anything is looked at, with their errors."""
    found = []
    for case in cases_for(kernel):
        try:
            bind(CARDS[kernel], case.build())
        except KernelError as error:
            found.append((case, error))
    return tuple(found)


def messages(kernel: str) -> list[str]:
    return [str(error) for _, error in host_errors(kernel)]


def copied(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.copy() if hasattr(value, "copy") else value for name, value in inputs.items()
    }


def n_bytes(inputs: dict[str, Any]) -> int:
    return sum(getattr(value, "nbytes", 0) for value in inputs.values())


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    if left.keys() != right.keys():
        return False
    return all(
        np.array_equal(left[name], right[name], equal_nan=left[name].dtype.kind == "f")
        and left[name].dtype == right[name].dtype
        if isinstance(left[name], np.ndarray)
        else left[name] == right[name]
        for name in left
    )


@by_kernel
def test_enough_cases_that_differ_in_shape_or_feature(kernel: str) -> None:
    points = {(case.features, shapes(case.build())) for case in cases_for(kernel)}
    legal = [case for case in cases_for(kernel) if case.expects is None]
    assert len(points) == len(cases_for(kernel)) >= 28
    assert len(legal) >= 20


@by_kernel
def test_names_and_tags_are_readable_and_unique(kernel: str) -> None:
    names = Counter(case.name for case in cases_for(kernel))
    assert max(names.values()) == 1, names.most_common(1)
    for case in cases_for(kernel):
        assert case.name.isidentifier() and case.name == case.name.lower()
        assert case.features and len(set(case.features)) == len(case.features), case.name


@by_kernel
def test_two_builds_are_equal_and_share_nothing(kernel: str) -> None:
    for case in cases_for(kernel):
        first, second = case.build(), case.build()
        assert same(first, second), case.name
        for name, value in first.items():
            if isinstance(value, np.ndarray):
                assert value.size == 0 or not np.shares_memory(value, second[name]), case.name
                assert value.flags.writeable and value.flags.c_contiguous, (case.name, name)


@by_kernel
def test_legal_cases_bind_and_stay_within_every_bound(kernel: str) -> None:
    card = CARDS[kernel]
    for case in cases_for(kernel):
        if case.expects is None:
            sizes = bind(card, case.build())
            assert all(axis.low <= sizes.get(axis.name, axis.low) for axis in card.axes), case.name


@by_kernel
def test_host_refusals_are_the_expected_class(kernel: str) -> None:
    for case, error in host_errors(kernel):
        assert type(error) is case.expects, f"{case.name}: {error}"


@by_kernel
def test_every_refusal_of_the_card_is_provoked(kernel: str) -> None:
    card, run = CARDS[kernel], load("reference", data_errors="status")[kernel]
    early = {case.name for case, _ in host_errors(kernel)}
    seen: set[int] = set()
    is_mixed = False
    for case in cases_for(kernel):
        if case.expects and case.name not in early:
            words = run(**case.build()).status
            seen.update(int(word) for word in words)
            is_mixed = is_mixed or Status.OK in words
    missing = [refusal.status.name for refusal in card.refusals if refusal.status not in seen]
    assert not missing
    assert is_mixed or not card.refusals, "no refused request has a good neighbour"


def is_reachable(card: Card, limit: Limit) -> bool:
    """Whether the axes and scalars alone leave room to pass a limit with a constant bound."""
    if limit.bound.names:
        return True
    highest = {bounded.name: bounded.high for bounded in (*card.axes, *card.scalars)}
    return limit.value(highest) > limit.bound({})


@by_kernel
def test_every_host_limit_is_passed_once(kernel: str) -> None:
    card = CARDS[kernel]
    said = messages(kernel)
    missing = [
        limit.meaning
        for limit in card.limits
        if is_reachable(card, limit) and not any(f"{limit.meaning}: " in text for text in said)
    ]
    assert not missing


def is_exceeded(kernel: str, bounded: Axis | Scalar) -> bool:
    return any(
        isinstance(error.value, int)
        and error.value > bounded.high
        and (f" {bounded.name} = " in str(error) or f"{bounded.name} holds " in str(error))
        for _, error in host_errors(kernel)
    )


@by_kernel
def test_every_axis_and_scalar_is_exceeded_once(kernel: str) -> None:
    card = CARDS[kernel]
    bounded = [*card.axes, *(s for s in card.scalars if s.default is REQUIRED)]
    missing = [
        entry.name
        for entry in bounded
        if not is_exceeded(kernel, entry) and (kernel, entry.name) not in TOO_LARGE_TO_EXCEED
    ]
    assert not missing


@by_kernel
def test_wrong_dtypes_shapes_and_the_empty_batch_are_there(kernel: str) -> None:
    classes = {type(error) for _, error in host_errors(kernel)}
    assert {KernelDtypeError, KernelBoundsError} <= classes
    tags = Counter(tag for case in cases_for(kernel) for tag in case.features)
    assert tags["wrong_shape"] and tags["wrong_dtype"]
    assert tags["empty_batch"] + tags["empty"]
    assert tags["batch_limit"]


@by_kernel
def test_reference_runs_the_legal_cases_and_refuses_the_others(kernel: str) -> None:
    run = load("reference")[kernel]
    for case in cases_for(kernel):
        inputs = case.build()
        before = copied(inputs)
        if case.expects is None:
            run(**inputs)
            continue
        with pytest.raises(case.expects) as caught:
            run(**inputs)
        assert type(caught.value) is case.expects, case.name
        assert same(before, inputs), f"{case.name} was refused and still wrote"


def test_the_suite_is_light() -> None:
    started = time.perf_counter()
    sizes = {
        (case.kernel, case.name): sum(
            getattr(value, "nbytes", 0) for value in case.build().values()
        )
        for case in all_cases()
    }
    seconds = time.perf_counter() - started
    assert seconds < 8
    assert max(sizes.values()) < 20e6
    assert sum(size > 100_000 for size in sizes.values()) < len(sizes) / 4
    assert len(sizes) == len(all_cases()) >= 450
    assert {case.kernel for case in all_cases()} == set(KERNELS)


def test_a_wrong_kernel_name_gets_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean calculate_work_deltas"):
        cases_for("calculate_work_delta")
