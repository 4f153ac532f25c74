"""Odd arrays behave the same in every backend: a named error before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.interpreted  # noqa: F401
from aerie.errors import AerieError, KernelArgumentError, KernelBoundsError, KernelDtypeError
from aerie.kernels import catalogue, load
from aerie.kernels.arguments import Memory, are_apart, have_own_memory, shown
from tests.parity.backend import BACKENDS, kernels_of, run, runnable
from tests.unit.kernels.examples import EXAMPLES, Inputs
from tests.unit.kernels.findings import Findings

each_backend = pytest.mark.parametrize("backend", [runnable(n) for n in (*BACKENDS, "triton")])
# Tests with hundreds of calls that are accepted; Triton's interpreter would take a minute for each.
each_quick_backend = pytest.mark.parametrize("backend", [runnable(name) for name in BACKENDS])
POOL = "assign_req_to_token_pool_operator"
HIDDEN = ("draft_replay", "extend_replay")


def refused(backend: str, example: str, changes: Inputs, error: type[AerieError]) -> AerieError:
    """The error of an example with other arguments; every array of it keeps its bytes."""
    kernel, build = EXAMPLES[example]
    inputs = {**build(), **changes}
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    before = [array.tobytes() for array in arrays]
    with pytest.raises(error) as caught:
        kernels_of(backend)[kernel](**inputs)
    assert [array.tobytes() for array in arrays] == before
    assert type(caught.value) is error, repr(caught.value)
    return caught.value


def each_array(*kinds: str) -> list[tuple[str, str, Any]]:
    """Example, name and array of every port of some kinds."""
    return [
        (example, port.name, build()[port.name])
        for example, (kernel, build) in EXAMPLES.items()
        for port in catalogue()[kernel].inputs
        if port.kind in kinds and port.name in build()
    ]


def read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


def backwards(array: Any) -> Any:
    return np.flip(np.flip(array).copy())


def crooked(array: Any) -> Any:
    """Entries that lie a byte further apart than they are long."""
    records = np.zeros(array.shape, [("gap", "i1"), ("entry", array.dtype)])
    records["entry"] = array
    return records["entry"]


def folded(array: Any) -> Any:
    return np.lib.stride_tricks.as_strided(array, array.shape, (0, *array.strides[1:]))


UNWRITABLE: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "read-only": read_only,
    "backwards": backwards,
    "crooked": crooked,
    "folded": folded,
}


@each_backend
def test_what_cannot_be_written_is_refused(backend: str) -> None:
    """hls wrote through read-only memory, the NumPy backends raised ValueErrors half-way."""
    with Findings() as found:
        for example, name, array in each_array("inout"):
            for kind, make in UNWRITABLE.items():
                with found.case(f"{example}: {name} {kind}"):
                    odd = make(array.copy())
                    error = refused(backend, example, {name: odd}, KernelArgumentError)
                    assert name in str(error) and "written in place" in str(error)


@each_backend
def test_a_mapped_file_is_read_and_not_written(backend: str, tmp_path: Path) -> None:
    """Writing to one that is mapped for reading was signal 11."""
    kernel, build = EXAMPLES["pool_locations"]
    path = tmp_path / "table"
    table = build()["req_to_token"]
    path.write_bytes(table.tobytes())
    mapped = np.memmap(path, np.int32, "r", shape=table.shape)
    assert "read-only" in str(refused(backend, "pool_locations", {"req_to_token": mapped},
                                      KernelArgumentError))  # fmt: skip
    slots = build()["out_cache_loc"]
    path.write_bytes(slots.tobytes())
    inputs, expected = build(), build()
    inputs["out_cache_loc"] = np.memmap(path, np.int32, "r", shape=slots.shape)
    run(backend, kernel, **inputs)
    run("reference", kernel, **expected)
    np.testing.assert_array_equal(inputs["req_to_token"], expected["req_to_token"])


@each_quick_backend
def test_reading_takes_any_memory(backend: str) -> None:
    with Findings() as found:
        for example, name, array in each_array("in"):
            kernel, build = EXAMPLES[example]
            for kind in ("bytes", "read-only", "backwards", "crooked"):
                with found.case(f"{example}: {name} {kind}"):
                    odd = {**build(), name: UNWRITABLE[kind](array.copy())}
                    result, expected = run(backend, kernel, **odd), run(backend, kernel, **build())
                    for field, value in vars(expected).items():
                        np.testing.assert_array_equal(getattr(result, field), value, err_msg=field)


@each_backend
def test_hidden_rows_of_two_dtypes_are_refused(backend: str) -> None:
    """hls read beyond the shorter rows; the others converted without a word."""
    with Findings() as found:
        for example in HIDDEN:
            for name in ("hidden", "static_hidden"):
                for dtype in ("float16", "uint16"):
                    with found.case(f"{example}: {name} {dtype}"):
                        other = EXAMPLES[example][1]()[name].astype(dtype)
                        error = refused(backend, example, {name: other}, KernelDtypeError)
                        assert "hidden" in str(error) and "float32" in str(error)


@each_backend
def test_the_other_byte_order_is_refused(backend: str) -> None:
    with Findings() as found:
        for example, name, array in each_array("in", "inout"):
            swapped = array.astype(array.dtype.newbyteorder(">"))
            if swapped.dtype != array.dtype:
                with found.case(f"{example}: {name}"):
                    error = refused(backend, example, {name: swapped}, KernelDtypeError)
                    assert error.value == str(swapped.dtype)


def negated(tensor: torch.Tensor) -> torch.Tensor:
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


class Marked(torch.Tensor):
    """A subclass, which may mean anything."""


ODD: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "meta": lambda tensor: tensor.to("meta"),
    "negated": negated,
    "subclass": lambda tensor: tensor.as_subclass(Marked),
    "list": lambda tensor: tensor.tolist(),
    "text": str,
    "scalar": lambda tensor: np.float32(1.0),
    "dtype": lambda tensor: np.float32,
    "masked": lambda tensor: np.ma.MaskedArray(tensor.numpy()),
    "records": lambda tensor: tensor.numpy().view(np.recarray),
    "buffer": lambda tensor: memoryview(tensor.numpy()),
    "object": lambda tensor: object(),
}


@each_backend
def test_what_is_no_plain_array_is_refused(backend: str) -> None:
    """After a good call of the same shapes, too: what is remembered must not let them in."""
    kernel, build = EXAMPLES["deltas"]
    run(backend, kernel, **build())
    with Findings() as found:
        for kind, make in ODD.items():
            with found.case(kind):
                odd = make(torch.from_numpy(build()["work_scores"]))
                refused(backend, "deltas", {"work_scores": odd}, KernelArgumentError)


@each_backend
def test_tensors_that_ask_for_gradients_are_read_and_written(backend: str) -> None:
    kernel, build = EXAMPLES["store"]
    expected, inputs = build(), build()
    names = ("cumu_scores", "sort_scores", "curr_layer_scores")
    kept = {name: torch.from_numpy(inputs[name]).requires_grad_() for name in names}
    run(backend, kernel, **{**inputs, **kept})
    run("reference", kernel, **expected)
    for name, tensor in kept.items():
        np.testing.assert_array_equal(tensor.detach().numpy(), expected[name], err_msg=name)


def as_tensors(inputs: Inputs) -> Inputs:
    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }


@each_quick_backend
@pytest.mark.parametrize("convert", [dict, as_tensors], ids=["arrays", "tensors"])
def test_memory_of_another_argument_is_refused(
    backend: str, convert: Callable[[Inputs], Inputs]
) -> None:
    """Whichever two of K2's arrays; after a good call of the same shapes, too."""
    kernel, build = EXAMPLES["store"]
    call = kernels_of(backend)[kernel]
    call(**convert(build()))
    with Findings() as found:
        for first in catalogue()[kernel].written:
            for second, whole in build().items():
                if second == first or not isinstance(whole, np.ndarray):
                    continue
                with found.case(f"{first} and {second}"):
                    inputs = build()
                    array = inputs[first]
                    memory = np.zeros(array.nbytes + whole.nbytes, np.uint8)
                    inputs[first] = _placed(memory, 0, array)
                    inputs[second] = _placed(memory, array.nbytes - 1, whole)
                    with pytest.raises(KernelArgumentError, match="shares memory with"):
                        call(**convert(inputs))
                    inputs[second] = _placed(memory, array.nbytes, whole)
                    call(**convert({**build(), first: inputs[first], second: inputs[second]}))


def _placed(memory: Any, offset: int, array: Any) -> Any:
    placed = memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


@each_backend
def test_columns_of_one_table_are_memory_of_their_own(backend: str) -> None:
    kernel, build = EXAMPLES["store"]
    expected, inputs = build(), build()
    names = ("cumu_tokens", "prev_indexs", "side_indexs")
    table = np.concatenate([inputs[name] for name in names], axis=1)
    inputs |= dict(zip(names, np.split(table, 3, axis=1), strict=True))
    run(backend, kernel, **inputs)
    run("reference", kernel, **expected)
    for name in names:
        np.testing.assert_array_equal(inputs[name], expected[name], err_msg=name)


@each_backend
def test_no_scalar_and_no_name_is_a_raw_error(backend: str) -> None:
    odd = (
        None,
        "3",
        1.5,
        np.int64(3),
        10**5000,
        -(10**30),
        (10**5000,),
        [3],
        object(),
        float("nan"),
    )
    with Findings() as found:
        for example, (kernel, build) in EXAMPLES.items():
            for scalar in catalogue()[kernel].scalars:
                for value in odd:
                    with found.case(f"{example}: {scalar.name} {shown(value)}"):
                        inputs = {**build(), scalar.name: value}
                        with pytest.raises(AerieError):
                            kernels_of(backend)[kernel](**inputs)
            with found.case(f"{example}: self"), pytest.raises(AerieError):
                kernels_of(backend)[kernel](**build(), self=1)


@each_backend
def test_a_capacity_is_looked_at_in_every_call(backend: str) -> None:
    """It is no part of what is remembered of a call."""
    kernel, build = EXAMPLES["kv_lists"]
    for capacity in (40, 41, 2**31 - 1 - 2**31 + 41):
        assert (
            len(run(backend, kernel, **{**build(), "kv_capacity": capacity}).kv_indices) == capacity
        )
    refused(backend, "kv_lists", {"kv_capacity": -1}, KernelBoundsError)
    refused(backend, "kv_lists", {"kv_capacity": 2**31}, KernelBoundsError)
    refused(backend, "kv_lists", {"kv_capacity": 40.0}, KernelArgumentError)
    refused(backend, "kv_lists", {"kv_capacity": True}, KernelArgumentError)


@each_backend
def test_a_huge_array_is_refused_before_it_is_copied(backend: str) -> None:
    """One number, said to be a terabyte: torch cannot share it, and must not copy it either."""
    huge = np.broadcast_to(np.float32(0), (1 << 20, 1 << 18))
    assert refused_by_size(backend, huge).value == 1 << 20


def refused_by_size(backend: str, scores: Any) -> KernelBoundsError:
    kernel, build = EXAMPLES["deltas"]
    with pytest.raises(KernelBoundsError) as caught:
        kernels_of(backend)[kernel](**{**build(), "work_scores": scores})
    return caught.value


def test_memory_that_steps_apart_meets_nothing() -> None:
    table = np.zeros((4, 6), np.int64)
    left, right = Memory.of(table[:, :3]), Memory.of(table[:, 3:])
    assert not left.meets(right) and left.meets(Memory.of(table[:, 2:]))
    assert not Memory.of(table[::2, ::3]).overlaps_itself()
    assert Memory.of(np.broadcast_to(table[0], (4, 6))).overlaps_itself()
    assert Memory.of(table[::-1]).runs_backwards()
    assert not Memory.of(table[:1][::-1]).runs_backwards()
    tensor = torch.from_numpy(table)
    assert Memory.of(tensor[:, 1:]).meets(left) and not Memory.of(tensor[:, 3:]).meets(left)


def test_the_quick_answers_never_say_apart_of_what_is_not() -> None:
    whole = np.zeros(9)
    assert have_own_memory([whole, np.zeros(9)[1:]])
    for other in (whole, whole[5:], np.frombuffer(bytes(8)), torch.zeros(3).numpy()):
        assert not have_own_memory([whole, other])
    assert are_apart([100, 0, 40], [8, 40, 60])
    assert not are_apart([100, 0, 40], [8, 41, 60])
    assert not are_apart([0, 0], [8, 8])


def test_a_backend_that_was_just_loaded_refuses_as_well() -> None:
    """Before anything is remembered: the first call of a kernel may be the wrong one."""
    kernel, build = EXAMPLES["pool_locations"]
    with pytest.raises(KernelArgumentError, match="read-only"):
        load("numpy")[kernel](**{**build(), "req_to_token": read_only(build()["req_to_token"])})
