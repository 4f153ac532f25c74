"""A kernel of one backend as callers see it: checked, called, and refusing by name."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from aerie.kernels import host
from aerie.kernels.arguments import are_apart, check_memory, have_own_memory
from aerie.kernels.binding import bind
from aerie.kernels.card import Card
from aerie.kernels.formula import Formula
from aerie.kernels.implementation import Implementation
from aerie.kernels.status import MEANINGS, Status

Adopt = Callable[[Any, str, bool], Any]
SIGNATURES_KEPT = 4096


class Kernel:
    """A kernel of one backend, called with named arrays, returning a named result.

    Every call is checked: names, kinds, dtypes, shapes, scalars, limits, and the memory of the
    arrays. Refusals that need data raise when `raises` is set (the default on a CPU); otherwise
    the status word is in the result and the refused request's state is unchanged.
    """

    def __init__(
        self,
        card: Card,
        implementation: Implementation,
        adopt: Adopt,
        raises: bool,
        device: str = "cpu",
    ) -> None:
        self.card = card
        self._adopt = adopt
        self._device = device
        self._run = implementation.run
        self._check = implementation.check
        self._raises = raises
        names = [port.name for port in card.outputs]
        self._result: Any = namedtuple(f"{card.name}_result", names)  # type: ignore[misc]
        # In C: half a microsecond less than keywords for the kernels with many results.
        is_one = len(names) == 1
        self._in_order = (lambda outputs: (outputs[names[0]],)) if is_one else itemgetter(*names)
        self._is_written = {port.name: port.kind == "inout" for port in card.inputs}
        self._loose = _loose_scalars(card)
        # How many bytes each array spans, by the signature of a call that passed.
        self._passed: dict[tuple[object, ...], tuple[int, ...]] = {}

    def __call__(self, /, **inputs: Any) -> Any:
        given = self._bound_inputs(inputs)
        if self._check is None:
            outputs = self._run(**given)
            detail = outputs.pop("detail", None)
            self._refuse(inputs, outputs.get("status"), detail)
        else:
            found = self._check(**given)
            self._refuse(inputs, found["status"], found["detail"])
            given["status"] = found["status"]
            outputs = self._run(**given)
            outputs["status"] = found["status"]
        return tuple.__new__(self._result, self._in_order(outputs))

    def _bound_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The backend's own arrays, checked against the card.

        The checks read shapes, dtypes, strides, flags and scalars, and a decoder repeats a few of
        those thousands of times: a call whose signature has passed before is not checked again.
        Whether two arrays share memory is asked of every call that writes.
        """
        given: dict[str, Any] = {}
        signature: list[object] = [*inputs]
        arrays: dict[str, Any] = {}  # those of NumPy
        starts: list[int] = []  # addresses of tensors, where a kernel writes
        is_written, loose, writes = self._is_written, self._loose, self.card.written
        adopt, device = self._adopt, self._device
        try:
            for name, value in inputs.items():
                kind = type(value)
                if name not in is_written or value is None:
                    if value is not None:
                        given[name] = value
                    if name not in loose or kind is not int or value not in loose[name]:
                        signature += (kind, value)
                    continue
                if kind is np.ndarray:
                    array = arrays[name] = value
                    if writes and not value.flags.carray:
                        signature += (value.strides, value.flags.num)
                else:
                    array = adopt(value, device, is_written[name])
                    if writes:
                        starts.append(value.data_ptr())
                        if not value.is_contiguous():
                            signature.append(value.stride())
                given[name] = array
                signature += (kind, array.shape, array.dtype)
            n_bytes = self._passed.get(tuple(signature))
        except Exception:
            # Something that no backend takes, or that cannot be hashed: the checks name it.
            return self._examined(inputs)
        if n_bytes is None:
            return self._examined(inputs, signature)
        if writes:
            is_apart = are_apart(starts, n_bytes) if starts else have_own_memory(arrays.values())
            # Arrays of two libraries in one call are compared one by one.
            if not is_apart or (starts and arrays):
                return self._examined(inputs)
        if adopt is not host.adopt:
            # Not before all is well: what torch cannot share is copied.
            for name, value in arrays.items():
                given[name] = adopt(value, device, is_written[name])
        return given

    def _examined(
        self, inputs: Mapping[str, Any], signature: list[object] | None = None
    ) -> dict[str, Any]:
        """All checks, then the backend's own arrays; a signature that passes is remembered."""
        bind(self.card, inputs)
        n_bytes = check_memory(self.card, inputs, self._device)
        if signature is not None:
            if len(self._passed) >= SIGNATURES_KEPT:
                self._passed.clear()
            self._passed[tuple(signature)] = n_bytes
        return {
            name: self._adopt(value, self._device, self._is_written[name])
            if name in self._is_written
            else value
            for name, value in inputs.items()
            if value is not None
        }

    def _refuse(self, inputs: Mapping[str, Any], status: Any, detail: Any) -> None:
        if status is None or not self._raises or not status.any():
            return
        words = [int(word) for word in status]
        request = next(index for index, word in enumerate(words) if word)
        code, value = Status(words[request]), int(detail[request])
        refusal = next(entry for entry in self.card.refusals if entry.status == code)
        limit = Formula(refusal.limit)(bind(self.card, inputs))
        meaning = MEANINGS[code]
        raise meaning.error(
            f"{self.card.name}: request {request}: {refusal.meaning} ({meaning.sentence}):"
            f" value {value}, limit {limit}; nothing was written",
            value=value,
            limit=limit,
            status=words,
        )


def _loose_scalars(card: Card) -> dict[str, range]:
    """Scalars whose own range is all that is asked of them, as capacities: they vary by the call
    and would make each one's signature another."""
    sizes = {name for port in card.inputs for dim in port.dims for name in dim.factors}
    limits = {name for limit in card.limits for name in limit.value.names | limit.bound.names}
    return {
        scalar.name: range(scalar.low, scalar.high + 1)
        for scalar in card.scalars
        if scalar.kind == "int" and scalar.name not in sizes | limits
    }
