"""Turns tables into cases: a row names a case, its features, its options and how it is spoiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aerie.errors import KernelBoundsError, KernelDataError, KernelDtypeError, KernelError
from aerie.kernels.cases.case import Case, Inputs, generator
from aerie.kernels.cases.spoils import Spoil

Array = np.ndarray[Any, Any]
Build = Callable[..., Inputs]

BOUNDS = KernelBoundsError
DATA = KernelDataError
DTYPE = KernelDtypeError


@dataclass(frozen=True)
class Row:
    """One line of a table of cases."""

    name: str
    features: tuple[str, ...]
    expects: type[KernelError] | None
    spoil: Spoil | None
    options: Mapping[str, Any]


def row(
    name: str,
    features: str = "",
    expects: type[KernelError] | None = None,
    spoil: Spoil | None = None,
    /,
    **options: Any,
) -> Row:
    """A line of a table: `options` go to the family's builder, then `spoil` edits its inputs."""
    return Row(name, tuple(features.split()), expects, spoil, options)


def cases(kernel: str, build: Build, rows: Iterable[Row]) -> tuple[Case, ...]:
    """The cases of a kernel; `build(rng, **options)` makes the inputs of a row."""
    return tuple(
        Case(kernel, line.name, line.features, partial(_inputs, kernel, build, line), line.expects)
        for line in rows
    )


def _inputs(kernel: str, build: Build, line: Row) -> Inputs:
    inputs = build(generator(kernel, line.name), **line.options)
    if line.spoil:
        line.spoil(inputs)
    return inputs
