"""Pearson's chi-square test with pooled cells, in plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

LEAST_EXPECTED = 5.0  # Cochran's rule: below it the statistic is not chi-square


@dataclass(frozen=True)
class Fit:
    """Outcome of one test."""

    statistic: float
    freedom: int
    p_value: float


def survival(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` degrees > statistic): the finite sums for integer degrees."""
    half = statistic / 2
    if half <= 0:
        return 1.0
    # Recurrence Q(a + 1, x) = Q(a, x) + x**a exp(-x) / Gamma(a + 1), from a = 1 or a = 1/2.
    a = 1.0 if freedom % 2 == 0 else 0.5
    total = math.exp(-half) if freedom % 2 == 0 else math.erfc(math.sqrt(half))
    while a < freedom / 2:
        total += math.exp(a * math.log(half) - half - math.lgamma(a + 1))
        a += 1
    return min(total, 1.0)


def pooled(
    counts: Mapping[Hashable, int], expected: Mapping[Hashable, float]
) -> list[tuple[float, float]]:
    """(count, expected) cells; the rarest are joined until each expects enough."""
    impossible = [cell for cell, n in counts.items() if n and not expected.get(cell, 0.0) > 0]
    assert not impossible, f"drawn, but impossible under the target: {impossible[:3]}"
    cells: list[tuple[float, float]] = []
    pool = (0.0, 0.0)
    for cell in sorted(expected, key=lambda cell: expected[cell]):
        pool = (pool[0] + counts.get(cell, 0), pool[1] + expected[cell])
        if pool[1] >= LEAST_EXPECTED:
            cells.append(pool)
            pool = (0.0, 0.0)
    if pool[1] > 0 and cells:
        last = cells.pop()
        cells.append((last[0] + pool[0], last[1] + pool[1]))
    return cells


def fit(counts: Mapping[Hashable, int], shares: Mapping[Hashable, float]) -> Fit:
    """Test draws against the shares they should have."""
    n_draws = sum(counts.values())
    cells = pooled(counts, {cell: share * n_draws for cell, share in shares.items()})
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    return Fit(statistic, len(cells) - 1, survival(statistic, len(cells) - 1))
