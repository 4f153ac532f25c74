"""A refusal leaves no trace: inputs keep their bytes, and other requests get what is theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aerie.errors import KernelBoundsError, KernelError
from aerie.kernels import catalogue
from aerie.kernels.cases import all_cases, cases_for
from tests.parity.backend import each_backend, kernels_of, run, run_with_status, starts
from tests.unit.kernels.examples import EXAMPLES, Inputs
from tests.unit.kernels.findings import Findings
from tests.unit.kernels.spoiled import ALL, BY_DATA, REFUSED, Spoiled


def photograph(inputs: Inputs) -> dict[str, bytes]:
    return {
        name: value.tobytes() for name, value in inputs.items() if isinstance(value, np.ndarray)
    }


def read_only_inputs(kernel: str, inputs: Inputs) -> Inputs:
    written = catalogue()[kernel].written
    return {name: value for name, value in inputs.items() if name not in written}


REFUSING = [case for case in all_cases() if case.expects]
each_kernel = pytest.mark.parametrize("kernel", catalogue())


@each_backend
@each_kernel
def test_a_refused_call_writes_nothing(backend: str, kernel: str) -> None:
    with Findings() as found:
        for spoiled in (entry for entry in ALL if entry.kernel == kernel):
            with found.case(spoiled):
                assert_nothing_is_written(backend, kernel, spoiled.inputs(), KernelError)
        for case in (entry for entry in REFUSING if entry.kernel == kernel):
            with found.case(case.name):
                assert case.expects is not None
                assert_nothing_is_written(backend, kernel, case.build(), case.expects)


def assert_nothing_is_written(
    backend: str, kernel: str, inputs: Inputs, expected: type[KernelError]
) -> None:
    before = photograph(inputs)
    with pytest.raises(expected):
        kernels_of(backend)[kernel](**inputs)
    assert photograph(inputs) == before


def test_refusing_cases_cover_every_card_that_refuses() -> None:
    refusing = {card.name for card in catalogue().values() if card.refusals or card.limits}
    assert refusing <= {case.kernel for case in REFUSING}


@each_backend
@each_kernel
def test_inputs_that_are_only_read_stay(backend: str, kernel: str) -> None:
    with Findings() as found:
        for case in (entry for entry in cases_for(kernel) if not entry.expects):
            with found.case(case.name):
                inputs = case.build()
                before = photograph(read_only_inputs(kernel, inputs))
                try:
                    run(backend, kernel, **inputs)
                except KernelBoundsError:
                    # Only a backend with tighter bounds of its own may refuse what the card allows.
                    assert kernels_of(backend)[kernel].card.limits != catalogue()[kernel].limits
                assert photograph(read_only_inputs(kernel, inputs)) == before


# Kernels whose requests do not share an output buffer: entry b of every array is request b's own.
APART = ("layer", "store", "probabilities", "coins", "match", "target_tokens")
RAGGED_ROWS = ("target_probas", "target_tokens")
ROWS = [slice(0, 3), slice(3, 8), slice(8, 10)]


def part(name: str, array: Any, b: int) -> Any:
    return array[ROWS[b]] if name in RAGGED_ROWS else array[b]


@each_backend
def test_other_requests_get_their_own_results(backend: str) -> None:
    with Findings() as found:
        for spoiled in (entry for entry in REFUSED if entry.example in APART):
            with found.case(f"{spoiled.kernel} {spoiled}"):
                assert_others_get_their_own_results(backend, spoiled)


def assert_others_get_their_own_results(backend: str, spoiled: Spoiled) -> None:
    kernel, build = EXAMPLES[spoiled.example]
    card = catalogue()[kernel]
    good, bad = build(), spoiled.inputs()
    state = {name: bad[name].copy() for name in card.written}
    expected = run(backend, kernel, **good)
    found = run_with_status(backend, kernel, **bad)
    for port in card.outputs:
        if port.name == "status":
            continue
        ours, theirs = getattr(found, port.name), getattr(expected, port.name)
        for b in (0, 2):
            np.testing.assert_array_equal(
                part(port.name, ours, b), part(port.name, theirs, b), err_msg=port.name
            )
        assert (part(port.name, ours, 1) == port.fill).all(), port.name
    for name, before in state.items():
        np.testing.assert_array_equal(bad[name][[0, 2]], good[name][[0, 2]], err_msg=name)
        np.testing.assert_array_equal(bad[name][1], before[1], err_msg=name)


ASSIGNING = ("draft_locations", "pool_locations")


@each_backend
def test_tables_keep_the_rows_of_refused_requests(backend: str) -> None:
    with Findings() as found:
        for spoiled in (entry for entry in BY_DATA if entry.example in ASSIGNING):
            with found.case(f"{spoiled.kernel} {spoiled}"):
                assert_table_keeps_the_rows(backend, spoiled)


def assert_table_keeps_the_rows(backend: str, spoiled: Spoiled) -> None:
    kernel, build = EXAMPLES[spoiled.example]
    good, bad = build(), spoiled.inputs()
    before = bad["req_to_token"].copy()
    run(backend, kernel, **good)
    run_with_status(backend, kernel, **bad)
    assert spoiled.status is not None
    expected = before.copy()
    for b, word in enumerate(spoiled.status):
        if not word:
            row = good["req_pool_indices"][b]
            expected[row] = good["req_to_token"][row]
    np.testing.assert_array_equal(bad["req_to_token"], expected)


@each_backend
def test_extend_replay_writes_all_or_nothing(backend: str) -> None:
    with Findings() as found:
        for spoiled in (entry for entry in BY_DATA if entry.example == "extend_replay"):
            with found.case(f"{spoiled.kernel} {spoiled}"):
                inputs = spoiled.inputs()
                before = photograph(inputs)
                run_with_status(backend, spoiled.kernel, **inputs)
                assert photograph(inputs) == before


# Kernels with flat outputs: a refused request takes no room in them.
FLAT = {
    "tree_mask": {"kv_indptr": ("kv_indices",), "mask_indptr": ("packed_mask",)},
    "kv_lists": {"kv_indptr": ("kv_indices",)},
    "offsets": {"qo_indptr": (), "kv_indptr": (), "mask_indptr": ()},
    "node_rows": {
        "qo_indptr": ("draft_tokens", "positions", "parent_row", "first_child_row")
        + ("next_sibling_row", "ancestor_bits")
    },
    "commit": {"out_indptr": ("out_tokens",), "rows_indptr": ("out_rows",)},
}


def segments(result: SimpleNamespace, indptr: str, arrays: tuple[str, ...]) -> list[Any]:
    """Per request: its length, and its part of every flat array."""
    bounds = getattr(result, indptr).tolist()
    per_request = (len(bounds) - 1) // 3
    cut = [bounds[per_request * b] for b in range(4)]
    return [
        [cut[b + 1] - cut[b], *(getattr(result, a)[cut[b] : cut[b + 1]].tolist() for a in arrays)]
        for b in range(3)
    ]


@each_backend
def test_a_refused_request_takes_no_room(backend: str) -> None:
    with Findings() as found:
        for spoiled in (entry for entry in BY_DATA if entry.example in FLAT):
            with found.case(f"{spoiled.kernel} {spoiled}"):
                assert_takes_no_room(backend, spoiled)


def assert_takes_no_room(backend: str, spoiled: Spoiled) -> None:
    kernel, build = EXAMPLES[spoiled.example]
    expected = run(backend, kernel, **build())
    found = run_with_status(backend, kernel, **spoiled.inputs())
    assert spoiled.status is not None
    fills = {port.name: port.fill for port in catalogue()[kernel].outputs}
    for indptr, arrays in FLAT[spoiled.example].items():
        ours, theirs = segments(found, indptr, arrays), segments(expected, indptr, arrays)
        for b, word in enumerate(spoiled.status):
            if word:
                assert ours[b][0] == 0
            else:
                assert ours[b] == theirs[b]
        end = int(getattr(found, indptr)[-1])
        for name in arrays:
            assert (getattr(found, name)[end:] == fills[name]).all()


@each_backend
def test_a_refused_commit_is_not_listed(backend: str) -> None:
    with Findings() as found:
        for spoiled in (entry for entry in REFUSED if entry.example == "commit"):
            with found.case(f"{spoiled.kernel} {spoiled}"):
                assert_is_not_listed(backend, spoiled)


def assert_is_not_listed(backend: str, spoiled: Spoiled) -> None:
    inputs = spoiled.inputs()
    found = run_with_status(backend, spoiled.kernel, **inputs)
    assert found.new_seq_len.tolist() == [6, int(inputs["seq_len"][1]), 8]
    assert found.unfinished.tolist() == [0, 2, -1]
    assert found.unfinished_count.tolist() == [2]
    assert found.out_indptr.tolist() == starts([2, 0, 1]).tolist()
    assert (found.kv_src[: found.move_count[0]].tolist()) == [186]
    assert (found.free[: found.free_count[0]].tolist()) == [186, 148]
