"""Where the layers of a small target stand among dead ones, and where its states are captured."""

from __future__ import annotations

from itertools import pairwise

from aerie.errors import UsageError
from aerie.models.eagle3.values import usual_boundaries

Layers = tuple[int | None, ...]  # small layer of each large one; None is dead


def place_layers(
    n_small: int, taps: tuple[int, ...], n_large: int, wanted: tuple[int, ...] | None
) -> tuple[Layers, tuple[int, ...]]:
    """Layers in order, and the large boundary of each captured state in the order given.

    A dead layer changes nothing, so every boundary between two live layers holds the same state.
    Asked-for boundaries must be possible. Otherwise the usual 2, N//2, N-3 are taken if the live
    layers fit between them, and an even spread if not; a config always states the result.
    """
    if wanted is not None:
        layers = _between(n_small, taps, n_large, wanted)
        if layers is None:
            raise UsageError(
                f"boundaries {list(taps)} of {n_small} layers cannot be captured at "
                f"{list(wanted)} of {n_large}: give as many, in the same order, with enough layers "
                "between them, or leave tap_boundaries out"
            )
        return layers, wanted
    in_order = _as_ordered(usual_boundaries(n_large), taps)
    layers = _between(n_small, taps, n_large, in_order) if in_order else None
    if layers is not None and in_order is not None:
        return layers, in_order
    return _spread(n_small, taps, n_large)


def _as_ordered(sizes: tuple[int, ...], taps: tuple[int, ...]) -> tuple[int, ...] | None:
    """Ascending sizes, rearranged as the taps are; None if their number differs."""
    if len(sizes) != len(taps):
        return None
    ranks = [sorted(taps).index(tap) for tap in taps]
    return tuple(sizes[rank] for rank in ranks)


def _between(
    n_small: int, taps: tuple[int, ...], n_large: int, wanted: tuple[int, ...]
) -> Layers | None:
    """As many live layers between two wanted boundaries as between the small ones, or None."""
    if len(taps) != len(wanted):
        return None
    marks = sorted({(0, 0), (n_small, n_large), *zip(taps, wanted, strict=True)})
    layers: list[int | None] = []
    for (small, large), (small_end, large_end) in pairwise(marks):
        n_dead = (large_end - large) - (small_end - small)
        if n_dead < 0 or small_end < small:
            return None
        layers += [*range(small, small_end), *[None] * n_dead]
    is_right = all(count_live(layers, w) == t for t, w in zip(taps, wanted, strict=True))
    return tuple(layers) if is_right and len(layers) == n_large else None


def _spread(n_small: int, taps: tuple[int, ...], n_large: int) -> tuple[Layers, tuple[int, ...]]:
    places = [layer * n_large // n_small for layer in range(n_small)]
    layers: list[int | None] = [None] * n_large
    for layer, place in enumerate(places):
        layers[place] = layer
    return tuple(layers), tuple(places[tap] if tap < n_small else n_large for tap in taps)


def count_live(layers: Layers | list[int | None], boundary: int) -> int:
    """Live layers below a boundary: the small boundary it holds the state of."""
    return sum(layer is not None for layer in layers[:boundary])
