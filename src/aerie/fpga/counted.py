"""Runs rounds in C-simulation and counts the bytes of every port of every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerie.kernels.hls.drafter_cards import DRAFTER_CARDS
from aerie.kernels.hls.fused_cards import FUSED_CARDS
from aerie.kernels.hls.fused_draft_card import FUSED_DRAFT_CARDS
from aerie.kernels.hls.meters import CountedKernel, PortBytes, counted_kernel

# Tops that are no kernels of the catalogue.
OWN = {card.name: card for card in (*FUSED_CARDS, *DRAFTER_CARDS, *FUSED_DRAFT_CARDS)}


class ByteCounter:
    """Calls tops by name and remembers what each moved through each port, over all calls."""

    def __init__(self) -> None:
        self._tops: dict[str, CountedKernel] = {}
        self.moved: dict[tuple[str, str], PortBytes] = {}
        self.calls: dict[str, int] = {}

    def call(self, name: str, **inputs: Any) -> Mapping[str, Any]:
        """Run a kernel of the catalogue or a fused top."""
        given = {key: value for key, value in inputs.items() if value is not None}
        counted = self._top(name)(**given)
        for port, n_bytes in counted.ports.items():
            key = (name, port)
            self.moved[key] = self.moved.get(key, PortBytes()) + n_bytes
        self.calls[name] = self.calls.get(name, 0) + 1
        return counted.results

    def by_top(self) -> dict[str, PortBytes]:
        """All ports of each top together."""
        found: dict[str, PortBytes] = {}
        for (name, _), n_bytes in self.moved.items():
            found[name] = found.get(name, PortBytes()) + n_bytes
        return found

    def _top(self, name: str) -> CountedKernel:
        if name not in self._tops:
            own = OWN.get(name)
            self._tops[name] = counted_kernel(name) if own is None else CountedKernel(own)
        return self._tops[name]
