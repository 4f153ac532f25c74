"""A parity case: one named set of inputs for one kernel."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.errors import KernelError

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One axis point of a kernel: a shape or a feature no other case of it has.

    `build` makes fresh NumPy arrays (and host scalars) on every call, the same ones each time.
    bfloat16 rows are uint16 bit patterns. `expects` is the error a CPU backend must raise.
    """

    kernel: str
    name: str
    features: tuple[str, ...]
    build: Callable[[], Inputs]
    expects: type[KernelError] | None = None


def generator(kernel: str, name: str) -> np.random.Generator:
    """The random generator of a case: a function of its names, so cases can be reordered."""
    return np.random.default_rng(zlib.crc32(f"{kernel}/{name}".encode()))
