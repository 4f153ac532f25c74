"""Reads the port counters of C-simulation: the bytes one call moved through each array."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.kernels.card import Card
from aerie.kernels.catalogue import catalogue
from aerie.kernels.hls.bind import CSimulation
from aerie.kernels.hls.build import cached_library
from aerie.kernels.hls.signature import hls_card, metered_parameters, parameters


@dataclass(frozen=True)
class PortBytes:
    """Bytes read from and written to external memory through one port."""

    read: int = 0
    written: int = 0

    def __add__(self, other: PortBytes) -> PortBytes:
        return PortBytes(self.read + other.read, self.written + other.written)

    @property
    def total(self) -> int:
        """Both directions."""
        return self.read + self.written


@dataclass(frozen=True)
class CountedCall:
    """What a call returned, and what it moved."""

    results: dict[str, Any]
    ports: dict[str, PortBytes]


def counted_kernel(name: str) -> CountedKernel:
    """A kernel of the catalogue, within the hardware's own limits."""
    return CountedKernel(hls_card(catalogue()[name]))


class CountedKernel:
    """One top in C-simulation whose every call is counted at the ports."""

    def __init__(self, card: Card, library: Callable[[str], Path] = cached_library) -> None:
        self.card = card
        self._simulation = CSimulation(self.card, library)
        self._library = library

    def __call__(self, **inputs: Any) -> CountedCall:
        results = self._simulation.run(**inputs)
        return CountedCall(results, self._ports())

    def _ports(self) -> dict[str, PortBytes]:
        names = [entry.name for entry in metered_parameters(parameters(self.card))]
        # The loader hands out the library that the call above has already loaded.
        loaded = ctypes.PyDLL(str(self._library(self.card.family)))
        return read_meters(getattr(loaded, f"{self.card.family}_meters"), names)


def read_meters(function: Any, names: list[str]) -> dict[str, PortBytes]:
    """The counters a library holds, by the names of the arrays in its order."""
    function.restype = ctypes.POINTER(ctypes.c_int64)
    values = function()
    return {
        name: PortBytes(values[2 * place], values[2 * place + 1])
        for place, name in enumerate(names)
    }
