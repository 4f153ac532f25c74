"""How a row of a table spoils its inputs: entries, arrays, dtypes and scalars replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aerie.errors import KernelBoundsError, KernelDataError, KernelDtypeError
from aerie.kernels.cases.case import Inputs

Spoil = Callable[[Inputs], None]

# The errors that a CPU backend raises for what is spoiled.
BOUNDS, DATA, DTYPE = KernelBoundsError, KernelDataError, KernelDtypeError


def put(name: str, index: Any, value: Any) -> Spoil:
    """Overwrite entries of one array."""

    def spoil(inputs: Inputs) -> None:
        inputs[name][index] = value

    return spoil


def setting(**values: Any) -> Spoil:
    """Replace host scalars or whole arrays."""
    return lambda inputs: inputs.update(values)


def cast(name: str, dtype: str) -> Spoil:
    """Hand one array over in another dtype."""

    def spoil(inputs: Inputs) -> None:
        inputs[name] = inputs[name].astype(dtype)

    return spoil


def blank(name: str, *shape: int) -> Spoil:
    """Replace one array by zeros of another shape."""

    def spoil(inputs: Inputs) -> None:
        inputs[name] = np.zeros(shape, inputs[name].dtype)

    return spoil


def blanks(**shapes: tuple[int, ...]) -> Spoil:
    """Several of them; zeros take no memory until they are looked at."""
    return both(*(blank(name, *shape) for name, shape in shapes.items()))


def both(*spoils: Spoil) -> Spoil:
    """Apply several edits in turn."""

    def spoil(inputs: Inputs) -> None:
        for one in spoils:
            one(inputs)

    return spoil
