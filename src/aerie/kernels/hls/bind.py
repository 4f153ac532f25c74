"""Calls a compiled kernel with named arrays: sizes, memory and pointers follow from the card."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.errors import KernelBoundsError
from aerie.kernels.binding import bind
from aerie.kernels.card import Card, Port
from aerie.kernels.hls.signature import (
    FIRST_BOUND,
    Parameter,
    bounds,
    check_parameters,
    has_check,
    parameters,
)

Array = NDArray[Any]

# Fresh results hold this byte, so that an entry a kernel forgets is wrong and not luckily zero.
POISON = 0xA5


class CSimulation:
    """One kernel in C-simulation; its family is compiled and loaded by the first call."""

    def __init__(self, card: Card, library: Callable[[str], Path]) -> None:
        self._card = card
        self._library = library

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Call the kernel; returns results by name, and `detail` where the card refuses."""
        # The kernel finds the status words of a checked call again by itself.
        inputs.pop("status", None)
        sizes = self._sizes(inputs)
        results: dict[str, Any] = {
            port.name: self._fresh(port, sizes, inputs) for port in self._card.outputs
        }
        if self._card.refusals:
            results["detail"] = _poisoned((sizes["B"],), np.dtype(np.int64))
        self._call(self._function(""), parameters(self._card), sizes, {**inputs, **results})
        for port in self._card.outputs:
            if port.dtypes == ("host_int",):
                results[port.name] = int(results[port.name][0])
        if has_check(self._card):
            # A caller of the check has the blamed values from there.
            del results["detail"]
        return results

    def check(self, **inputs: Any) -> dict[str, Any]:
        """The refusals of a call, with nothing written."""
        sizes = self._sizes(inputs)
        found = {
            "status": _poisoned((sizes["B"],), np.dtype(np.int32)),
            "detail": _poisoned((sizes["B"],), np.dtype(np.int64)),
        }
        listed = check_parameters(self._card)
        self._call(self._function("_check"), listed, sizes, {**inputs, **found})
        return found

    def _sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        sizes = bind(self._card, inputs)
        for axis in self._card.axes:
            # The axis of an array that was not given: any legal size will do.
            sizes.setdefault(axis.name, axis.low)
        return sizes

    def _fresh(self, port: Port, sizes: Mapping[str, int], inputs: Mapping[str, Any]) -> Array:
        if port.dtypes == ("host_int",):
            return _poisoned((1,), np.dtype(np.int32))
        dtype = np.dtype(port.dtypes[0])
        if len(port.dtypes) > 1:
            # Hidden rows come out as they went in.
            source = next(entry for entry in self._card.inputs if entry.dtypes == port.dtypes)
            dtype = inputs[source.name].dtype
        return _poisoned(tuple(size(sizes) for size in port.sizes), dtype)

    @cached_property
    def _loaded(self) -> ctypes.PyDLL:
        # PyDLL keeps the interpreter's lock: scratch memory of a kernel is static, as on a chip.
        return ctypes.PyDLL(str(self._library(self._card.family)))

    def _function(self, suffix: str) -> Any:
        return getattr(self._loaded, f"{self._card.name}{suffix}")

    def _call(
        self,
        function: Any,
        listed: tuple[Parameter, ...],
        sizes: Mapping[str, int],
        values: Mapping[str, Any],
    ) -> None:
        passed: list[Any] = []
        copies: list[tuple[Array, Array]] = []  # kept until the call is over, then copied back
        for entry in listed:
            if entry.role in ("size", "scalar"):
                passed.append(ctypes.c_int32(sizes[entry.name]))
            elif entry.role == "flag":
                is_given = values.get(entry.name.removeprefix("has_")) is not None
                passed.append(ctypes.c_int32(is_given))
            elif entry.role == "length":
                passed.append(ctypes.c_int32(len(values[entry.name.removeprefix("n_")])))
            elif (value := values.get(entry.name)) is None:
                passed.append(None)
            else:
                array = np.asarray(value, np.int32) if entry.role == "list" else value
                packed = np.ascontiguousarray(array)
                if not packed.flags.aligned:
                    packed = packed.copy()
                copies.append((array if entry.is_written else packed, packed))
                passed.append(ctypes.c_void_p(packed.ctypes.data))
        code = function(*passed)
        if code:
            self._refuse(code, sizes)
        for array, packed in copies:
            if array is not packed:
                array[...] = packed

    def _refuse(self, code: int, sizes: Mapping[str, int]) -> None:
        bound = bounds(self._card)[code - FIRST_BOUND]
        value = sizes.get(bound.name)
        raise KernelBoundsError(
            f"{self._card.name}: the kernel refuses {bound.name} = {value}", value=value
        )


def _poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8)[...] = POISON
    return made
