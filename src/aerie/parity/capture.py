"""Taps the kernels of a live engine: chosen calls become dumps, the others pass through."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.errors import KernelError, UsageError
from aerie.kernels.arrays import as_numpy
from aerie.kernels.card import Card
from aerie.kernels.registry import Kernel, Kernels
from aerie.parity.capture_conditions import Condition
from aerie.parity.dump import SUFFIX, Dump, outcome_of, resolved_scalars, write_dump
from aerie.parity.dump_file import Array


@dataclass(frozen=True)
class CapturePlan:
    """What a capture keeps: `calls` per kernel and condition, none larger than `most_bytes`."""

    directory: Path
    conditions: tuple[Condition, ...]
    calls: int
    most_bytes: int
    kernels: frozenset[str] = frozenset()  # none named: all


@dataclass
class Written:
    """What a capture has done so far, by kernel."""

    files: Counter[str] = field(default_factory=Counter)
    too_large: Counter[str] = field(default_factory=Counter)
    n_bytes: int = 0


class Capture:
    """Wraps loaded kernels: an engine loaded with `tap=capture.tap` writes dumps as it runs."""

    def __init__(self, plan: CapturePlan, provenance: Mapping[str, Any]) -> None:
        if any(plan.directory.glob(f"*{SUFFIX}")):
            raise UsageError(f"{plan.directory} already holds dumps; choose another folder")
        self.plan = plan
        self.written = Written()
        self.taps: dict[str, TappedKernel] = {}
        self._provenance = provenance

    def tap(self, kernels: Kernels) -> Kernels:
        """The same kernels, those of the plan with a tap on them."""
        for name in self.plan.kernels:
            kernels[name]  # a wrong name is told before anything runs
        tapped: dict[str, Any] = dict(kernels)
        for name, kernel in kernels.items():
            if not self.plan.kernels or name in self.plan.kernels:
                self.taps[name] = tapped[name] = TappedKernel(kernel, self)
        return Kernels(kernels.backend, kernels.device, kernels.data_errors, tapped)

    def write(self, dump: Dump) -> bool:
        """Write one dump; False if it is larger than the plan allows."""
        name = dump.card.name
        if dump.n_bytes > self.plan.most_bytes:
            self.written.too_large[name] += 1
            return False
        path = self.plan.directory / f"{name}-{self.written.files[name]:04d}{SUFFIX}"
        self.written.n_bytes += write_dump(path, dump)
        self.written.files[name] += 1
        return True

    def origin(self, call: int, reasons: list[str]) -> dict[str, Any]:
        """Provenance of one call."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return {**self._provenance, "created": now, "call": call, "reasons": reasons}


@dataclass(frozen=True)
class AxisSource:
    """An input that has an axis as a dimension of its own: which one, and what is added to it."""

    port: str
    index: int
    offset: int


class TappedKernel:
    """One kernel with a tap: called as before, it hands chosen calls to the capture."""

    def __init__(self, kernel: Kernel, capture: Capture) -> None:
        self.card = kernel.card
        self.n_calls = 0
        self._kernel = kernel
        self._capture = capture
        wanted = [c for c in capture.plan.conditions if c.applies_to(kernel.card)]
        self._left = dict.fromkeys(wanted, capture.plan.calls)
        self._axes = {c.axis: _axis_source(kernel.card, c.axis) for c in wanted if c.axis}
        # Every card names its requests or slots first.
        self._leading = _axis_source(kernel.card, kernel.card.axes[0].name)
        self._sizes: dict[str, int] = {}

    def __call__(self, **inputs: Any) -> Any:
        self.n_calls += 1
        if not self._left:  # everything asked for is on disk: nothing but this line remains
            return self._kernel(**inputs)
        changed = self._changed_axes(inputs)
        is_empty = not self._size(self._leading, inputs)
        is_chosen = any(_is_met_before(c, changed, is_empty) for c in self._left)
        may_follow = any(c.holds for c in self._left)
        if not (is_chosen or may_follow) or self._is_too_large(inputs):
            return self._kernel(**inputs)
        # What is written in place must be copied now, whatever the result will say.
        before = {n: _copy(inputs[n]) for n in self.card.written if inputs.get(n) is not None}
        try:
            result = self._kernel(**inputs)
        except KernelError as error:
            # The call that stops an engine is the one its engineer wants to see.
            self._keep([], inputs, before, error)
            raise
        values = {**inputs, **result._asdict()}
        met = [
            c
            for c in self._left
            if _is_met_before(c, changed, is_empty) or (c.holds and c.holds(values))
        ]
        if met:
            self._keep(met, inputs, before, result)
        return result

    def _is_too_large(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the inputs alone exceed the limit: then nothing is copied."""
        sizes = (getattr(value, "nbytes", 0) for value in inputs.values())
        if sum(sizes) <= self._capture.plan.most_bytes:
            return False
        self._capture.written.too_large[self.card.name] += 1
        return True

    def _changed_axes(self, inputs: Mapping[str, Any]) -> set[str]:
        changed = set()
        for axis, source in self._axes.items():
            if inputs.get(source.port) is None:
                continue
            size = self._size(source, inputs)
            if self._sizes.get(axis, size) != size:
                changed.add(axis)
            self._sizes[axis] = size
        return changed

    @staticmethod
    def _size(source: AxisSource, inputs: Mapping[str, Any]) -> int:
        return int(inputs[source.port].shape[source.index]) - source.offset

    def _keep(
        self,
        met: list[Condition],
        inputs: Mapping[str, Any],
        before: Mapping[str, Array],
        result: Any,
    ) -> None:
        """Write the call; `result` is the error of a call that was refused before it ran."""
        outputs: dict[str, Array] = {}
        if not isinstance(result, KernelError):
            outputs = {name: _copy(value) for name, value in result._asdict().items()}
            outputs |= {name: _copy(inputs[name]) for name in before}
        given = [port.name for port in self.card.inputs if inputs.get(port.name) is not None]
        dump = Dump(
            card=self.card,
            inputs={n: before[n] if n in before else _copy(inputs[n]) for n in given},
            scalars=resolved_scalars(self.card, inputs),
            outputs=outputs,
            outcome=outcome_of(outputs) if outputs else type(result).__name__,
            provenance=self._capture.origin(self.n_calls - 1, [c.name for c in met]),
        )
        if self._capture.write(dump):
            for condition in met:
                self._left[condition] -= 1
                if not self._left[condition]:
                    del self._left[condition]


def _is_met_before(condition: Condition, changed: set[str], is_empty: bool) -> bool:
    """Conditions that need no result: a changed axis, or every call."""
    if condition.holds is not None:
        return False
    if condition.axis is not None:
        return condition.axis in changed
    return condition.takes_empty or not is_empty


def _axis_source(card: Card, axis: str) -> AxisSource:
    for port in card.inputs:
        for index, dim in enumerate(port.dims):
            if dim.factors == (axis,):
                return AxisSource(port.name, index, dim.offset)
    raise AssertionError(f"no input of {card.name} has the axis {axis} to itself")


def _copy(value: Any) -> Array:
    return as_numpy(value).copy(order="C")
