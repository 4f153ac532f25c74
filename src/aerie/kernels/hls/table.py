"""The hls backend's kernels by name."""

from __future__ import annotations

from collections.abc import Iterable

from aerie.kernels.catalogue import catalogue
from aerie.kernels.hls.bind import CSimulation
from aerie.kernels.hls.build import cached_library
from aerie.kernels.hls.signature import has_check, hls_card, ported_cards
from aerie.kernels.implementation import Implementation

# A kernel that is not listed comes from the base backend, so a port may begin with one.
PORTED = tuple(card.name for card in ported_cards())


def implementations(names: Iterable[str]) -> dict[str, Implementation]:
    """The named kernels; a family is compiled when one of its kernels is first called."""
    table = {}
    for name in names:
        card = hls_card(catalogue()[name])
        simulated = CSimulation(card, cached_library)
        table[name] = Implementation(simulated.run, simulated.check if has_check(card) else None)
    return table


KERNELS: dict[str, Implementation] = implementations(PORTED)
