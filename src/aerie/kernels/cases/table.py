"""Turns tables into cases: a row names a case, its features, its options and how it is spoiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aerie.errors import KernelError
from aerie.kernels.cases.case import Case, generator
from aerie.kernels.cases.case import Inputs as Inputs
from aerie.kernels.cases.spoils import Spoil

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Build = Callable[..., Inputs]


@dataclass(frozen=True)
class Row:
    """One line of a table of cases."""

    name: str
    features: tuple[str, ...]
    expects: type[KernelError] | None
    spoils: tuple[Spoil, ...]
    options: Mapping[str, Any]


def row(name: str, features: str = "", /, *how: type[KernelError] | Spoil, **options: Any) -> Row:
    """A line of a table: `options` go to the family's builder, then spoils edit its inputs.

    An error among `how` is the one that a CPU backend must raise.
    """
    expects = next((one for one in how if isinstance(one, type)), None)
    spoils = tuple(one for one in how if not isinstance(one, type))
    return Row(name, tuple(features.split()), expects, spoils, options)


def cases(kernel: str, build: Build, rows: Iterable[Row]) -> tuple[Case, ...]:
    """The cases of a kernel; `build(rng, **options)` makes the inputs of a row."""
    return tuple(
        Case(kernel, line.name, line.features, partial(_inputs, kernel, build, line), line.expects)
        for line in rows
    )


def _inputs(kernel: str, build: Build, line: Row) -> Inputs:
    inputs = build(generator(kernel, line.name), **line.options)
    for spoil in line.spoils:
        spoil(inputs)
    return inputs
