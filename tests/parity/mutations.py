"""Mutations of valid kernel calls, the same ones for the same seed; shared, not a test itself.

`mutated_call(kernel, seed, index)` takes a case of a kernel and changes it up to three times. Its
`build` makes the same call again in fresh memory, so that every backend gets its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from aerie.kernels import catalogue
from aerie.kernels.card import Card, Port
from aerie.kernels.cases import Case, cases_for

Inputs = dict[str, Any]
Mutate = Callable[[random.Random, Card, Inputs], None]

# Larger cases take long in the reference and show nothing else.
MOST_ENTRIES = 3_000
# A legal capacity beyond this is a buffer of gigabytes.
MOST_CAPACITY = 5_000

_INTEGERS = (0, 1, -1, 2, 3, 5, 7, 127, 128, 129, 2**31 - 1, -(2**31))
_LONG = (2**31, 2**40, 2**51, 5 + 2**51, 2**62, 2**63 - 2, 2**63 - 1, -(2**63), 1 - 2**63)
_FLOATS = (
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-45, 1e-7, 1e-6, 2e-6, 1e-38,
    1 - 2**-24, 1.001, 3.4e38, -3.4e38,
)  # fmt: skip
_DTYPES = (
    "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "longdouble", "bool", "complex64", "object", "<U3", "S3",
)  # fmt: skip
_SCALARS = (
    -1, 0, 1, 2, 3, 9, 64, 127, 128, 129, 1025, 4096, 4097, 2**31, 2**32 + 1, 2**63, 10**30,
    10**5000, True, False, None, 1.5, float("nan"), "3", b"3", (1, 2), [4], np.int64(3),
    np.bool_(True), np.array(3), object(), (), (4, 2), (1, 1), (2, 4, 8), (True, 2), (1, 2.0),
    (10**30,), (1, 10**5000),
)  # fmt: skip


def some_array(rng: random.Random, card: Card, inputs: Inputs) -> Port | None:
    """One of the arrays of a call, as its port."""
    ports = [port for port in card.inputs if type(inputs.get(port.name)) is np.ndarray]
    return rng.choice(ports) if ports else None


def change_values(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """Extremes, NaN and infinities, repeated entries; a few places, or everywhere."""
    port = some_array(rng, card, inputs)
    # Of values that a card assumes, nothing is promised.
    if port is None or card.assumes or not inputs[port.name].size:
        return
    array = inputs[port.name] = inputs[port.name].copy()
    places = [rng.randrange(array.size) for _ in range(rng.choice((1, 1, 2, 5)))]
    flat = array.reshape(-1)
    if rng.random() < 0.1:
        places = list(range(array.size))
    if rng.random() < 0.3:
        flat[places] = flat[rng.randrange(array.size)]
    elif array.dtype.kind == "f":
        flat[places] = np.array(rng.choice(_FLOATS), np.float64).astype(array.dtype)
    elif array.dtype.kind == "b":
        flat[places] = ~flat[places]
    elif rng.random() < 0.3:
        flat[places] += array.dtype.type(rng.choice((1, 2)))
    else:
        values = _INTEGERS + (_LONG if array.dtype.itemsize == 8 else ())
        flat[places] = np.array(rng.choice(values), np.int64).astype(array.dtype)


def change_dtype(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """Another dtype: one the card may take elsewhere, or one that no card knows."""
    port = some_array(rng, card, inputs)
    if port is not None:
        several = [p for p in card.inputs if len(p.dtypes) > 1]
        if several and rng.random() < 0.5:
            port = rng.choice(several)
        array = inputs.get(port.name)
        if type(array) is not np.ndarray or array.dtype.kind not in "biuf":
            return
        names = [n for n in port.dtypes if n != "bfloat16"] if rng.random() < 0.5 else _DTYPES
        inputs[port.name] = array.astype(rng.choice(names))


def change_byte_order(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """The bytes of each entry the other way round."""
    port = some_array(rng, card, inputs)
    if port is not None:
        array = inputs[port.name]
        inputs[port.name] = array.astype(array.dtype.newbyteorder(">"))


def change_strides(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """The same values walked backwards, spread, by columns, misaligned; or folded ones."""
    port = some_array(rng, card, inputs)
    if port is not None:
        layouts = [own for own in _LAYOUTS if own is not _folded or not card.assumes]
        inputs[port.name] = rng.choice(layouts)(inputs[port.name])


def _backwards(array: Any) -> Any:
    return np.flip(np.flip(array).copy())


def _spread(array: Any) -> Any:
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


def _misaligned(array: Any) -> Any:
    if array.dtype.hasobject:
        return array  # references lie where Python wants them
    memory = np.zeros(array.nbytes + 1, np.uint8)
    moved = memory[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def _folded(array: Any) -> Any:
    if not array.size or not array.ndim:
        return array
    return np.lib.stride_tricks.as_strided(array, array.shape, (0, *array.strides[1:]))


_LAYOUTS = (_backwards, _spread, np.asfortranarray, _misaligned, _folded)


def change_aliasing(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """Two arrays in one buffer: on the same place, shifted, side by side, or interleaved."""
    names = [p.name for p in card.inputs if type(inputs.get(p.name)) is np.ndarray]
    written = [name for name in names if name in card.written]
    if len(names) < 2:
        return
    first = rng.choice(written or names)
    second = rng.choice([name for name in names if name != first])
    one, two = inputs[first], inputs[second]
    if one.dtype == object or two.dtype == object:
        return
    if one.ndim == 2 and one.shape == two.shape and one.dtype == two.dtype and rng.random() < 0.5:
        both = np.concatenate((one, two), axis=1)
        inputs[first], inputs[second] = both[:, : one.shape[1]], both[:, one.shape[1] :]
        return
    shift = rng.choice((0, one.nbytes // 2, max(one.nbytes - 8, 0), one.nbytes, one.nbytes + 8))
    shift -= shift % 8
    memory = np.zeros(shift + one.nbytes + two.nbytes + 8, np.uint8)
    inputs[second] = memory[shift : shift + two.nbytes].view(two.dtype).reshape(two.shape)
    inputs[second][...] = two
    inputs[first] = memory[: one.nbytes].view(one.dtype).reshape(one.shape)
    inputs[first][...] = one


def change_shape(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """An entry less or more, none at all, an axis less or more, axes exchanged."""
    port = some_array(rng, card, inputs)
    if port is None:
        return
    array = inputs[port.name]
    axis = rng.randrange(array.ndim) if array.ndim else 0
    match rng.choice(("less", "more", "none", "axis", "reduced", "exchanged", "scalar")):
        case "less" if array.ndim and array.shape[axis]:
            array = array.take(range(array.shape[axis] - 1), axis=axis)
        case "more" if array.ndim and array.size:
            array = np.concatenate((array, array.take([0], axis=axis)), axis=axis)
        case "none" if array.ndim:
            array = array.take([], axis=axis)
        case "axis":
            array = array[None]
        case "reduced" if array.ndim and array.shape[0]:
            array = array[0]
        case "exchanged":
            array = array.T
        case "scalar":
            array = np.zeros((), array.dtype)
    inputs[port.name] = np.asarray(array)


def make_read_only(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """Memory that must not be written: by its flag, or because it holds bytes of a request."""
    written = [name for name in card.written if type(inputs.get(name)) is np.ndarray]
    port = some_array(rng, card, inputs)
    name = rng.choice(written) if written and rng.random() < 0.7 else port.name if port else None
    if name is None:
        return
    array = inputs[name]
    if rng.random() < 0.5 and array.dtype != object and array.nbytes:
        inputs[name] = np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
    else:
        inputs[name] = array.copy()
        inputs[name].setflags(write=False)


def change_kind(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """Not an array at all, or one with another meaning."""
    port = some_array(rng, card, inputs)
    if port is not None:
        inputs[port.name] = rng.choice(_KINDS)(inputs[port.name])


_KINDS: tuple[Callable[[Any], Any], ...] = (
    lambda array: None,
    lambda array: array.tolist(),
    lambda array: str(array),
    lambda array: object(),
    lambda array: array.dtype,
    lambda array: type(array),
    lambda array: array.dtype.type(),
    lambda array: 5,
    lambda array: np.ma.MaskedArray(array),
    lambda array: array.view(np.recarray),
    lambda array: memoryview(array.tobytes()),
    lambda array: range(3),
)


def change_scalar(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """A host scalar of another value or kind."""
    scalars = [scalar for scalar in card.scalars if scalar.name in inputs]
    if not scalars:
        return
    scalar = rng.choice(scalars)
    value = rng.choice((*_SCALARS, scalar.low - 1, scalar.low, scalar.high + 1))
    is_large = type(value) is int and MOST_CAPACITY < value <= scalar.high
    inputs[scalar.name] = 17 if is_large else value


def change_names(rng: random.Random, card: Card, inputs: Inputs) -> None:
    """An argument left out, one too many, or two exchanged."""
    names = list(inputs)
    match rng.randrange(3):
        case 0:
            del inputs[rng.choice(names)]
        case 1:
            inputs[rng.choice(("status", "detail", "self", names[0] + "x"))] = inputs[names[0]]
        case _:
            one, two = rng.choice(names), rng.choice(names)
            inputs[one], inputs[two] = inputs[two], inputs[one]


ARRAY_MUTATIONS: dict[str, Mutate] = {
    "values": change_values,
    "dtype": change_dtype,
    "byte order": change_byte_order,
    "strides": change_strides,
    "aliasing": change_aliasing,
    "shape": change_shape,
    "read-only": make_read_only,
    "kind": change_kind,
    "scalar": change_scalar,
    "names": change_names,
}
# Values are where kernels differ; the other checks are made once for all of them.
_WEIGHTS = {"values": 8, "byte order": 1, "kind": 1, "names": 1}


@dataclass(frozen=True)
class Call:
    """A mutated call: what was changed, and fresh inputs on every `build`."""

    kernel: str
    case: Case
    mutations: tuple[tuple[str, Mutate], ...]
    seed: str
    data_errors: str

    def __str__(self) -> str:
        names = ", ".join(name for name, _ in self.mutations)
        return f"{self.seed} ({self.case.name}; {names or 'no change'}; {self.data_errors})"

    def build(self) -> Inputs:
        """The inputs, in memory of their own."""
        rng = random.Random(self.seed)
        inputs = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in _built(self.case).items()
        }
        with np.errstate(all="ignore"):
            for _, mutate in self.mutations:
                mutate(rng, catalogue()[self.kernel], inputs)
        return inputs


@cache
def _built(case: Case) -> Inputs:
    return case.build()


@cache
def light_cases(kernel: str, most: int = MOST_ENTRIES) -> tuple[Case, ...]:
    """The cases of a kernel that are quickly computed."""

    def size(case: Case) -> int:
        inputs = case.build()
        arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
        capacities = [v for n, v in inputs.items() if n.endswith("capacity") and type(v) is int]
        return sum(array.size for array in arrays) + sum(capacities)

    return tuple(case for case in cases_for(kernel) if size(case) <= most)


def mutated_call(
    kernel: str,
    seed: int,
    index: int,
    mutations: Mapping[str, Mutate] = ARRAY_MUTATIONS,
    most: int = MOST_ENTRIES,
) -> Call:
    """Mutated call number `index` of a run with a seed."""
    text = f"{kernel}/{seed}/{index}"
    rng = random.Random(text)
    n = rng.choice((1, 1, 1, 1, 2, 2, 3))
    weights = [_WEIGHTS.get(name, 2) for name in mutations]
    chosen = rng.choices(list(mutations.items()), weights, k=n)
    # What makes tensors of arrays comes last: the others change arrays.
    chosen.sort(key=lambda entry: entry[0] not in ARRAY_MUTATIONS)
    case = rng.choice(light_cases(kernel, most))
    return Call(kernel, case, tuple(chosen), text, rng.choice(("raise", "status")))
