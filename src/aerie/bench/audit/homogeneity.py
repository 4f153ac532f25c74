"""Whether two samples come from one distribution: Pearson's chi-square test of homogeneity."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

LEAST_EXPECTED = 5.0  # Cochran's rule: below it the statistic is not chi-square
LEAST_P = 1e-3  # one audit in a thousand of a faultless server is rejected


@dataclass(frozen=True)
class Homogeneity:
    """Outcome of one test; without a second cell there is nothing to tell apart."""

    draws: tuple[int, int]
    statistic: float
    freedom: int
    p_value: float

    @property
    def is_kept(self) -> bool:
        """Whether one distribution explains both samples."""
        return self.p_value >= LEAST_P


def compare_samples(one: Counter[str], other: Counter[str]) -> Homogeneity:
    """Test two samples of the same kind of outcome; rare ones are joined until enough is expected.

    Outcomes are joined by how often both samples together have them, so that neither decides.
    """
    draws = one.total(), other.total()
    whole = sum(draws)
    share = min(draws) / whole
    cells: list[tuple[int, int]] = []
    pool = (0, 0)
    for outcome, n_both in sorted((one + other).items(), key=lambda item: (item[1], item[0])):
        pool = (pool[0] + one[outcome], pool[1] + n_both)
        if pool[1] * share >= LEAST_EXPECTED:
            cells.append(pool)
            pool = (0, 0)
    if pool[1] and cells:
        last = cells.pop()
        cells.append((last[0] + pool[0], last[1] + pool[1]))
    statistic = 0.0
    for n_one, n_both in cells:
        for n, size in ((n_one, draws[0]), (n_both - n_one, draws[1])):
            expected = n_both * size / whole
            statistic += (n - expected) ** 2 / expected
    freedom = max(len(cells) - 1, 0)
    return Homogeneity(draws, statistic, freedom, survival(statistic, freedom))


def survival(statistic: float, freedom: int) -> float:
    """P(chi-square with so many degrees of freedom > statistic)."""
    if not freedom:
        return 1.0
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))
