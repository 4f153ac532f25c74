"""Experts that rows wake: how many a layer touches, and what one more of them costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.config.values import read_number
from aerie.errors import UsageError

Floats = NDArray[np.float64]
CANDIDATES = 257  # numbers of experts that counts are fitted to


@dataclass(frozen=True)
class Waking:
    """Rows that are routed independently, each to `n_active` of so many experts of a layer."""

    n_active: float
    n_spread: float  # of all experts as many as routing, were it uniform, would have to be over
    seconds: float  # of one more expert in every layer

    def touched(self, rows: NDArray[Any] | float) -> Floats:
        """Distinct experts of a layer, to be expected of so many rows."""
        return expected_experts(self.n_active, self.n_spread, rows)


def expected_experts(n_active: float, n_spread: float, rows: NDArray[Any] | float) -> Floats:
    """Of `n_spread` experts every row wakes `n_active`, and leaves each other one asleep."""
    asleep: Floats = np.power(1.0 - n_active / n_spread, np.asarray(rows, dtype=np.float64))
    return n_spread * (1.0 - asleep)


def fit_spread(n_experts: int, n_active: int, rows: Floats, counted: Floats) -> float:
    """The number of experts under which uniform routing comes nearest to what was counted."""
    spreads = np.linspace(n_active, n_experts, CANDIDATES)
    errors = [np.square(expected_experts(n_active, own, rows) - counted).sum() for own in spreads]
    return float(spreads[int(np.argmin(errors))])


def read_waking(entry: Any) -> Waking | None:
    """From a table's file; None: a dense model's."""
    if entry is None:
        return None
    names = ("n_active", "n_spread", "seconds")
    if not isinstance(entry, Mapping) or sorted(entry) != sorted(names):
        raise UsageError(f"waking is {entry!r:.60}, must have {', '.join(names)}")
    found = Waking(**{name: read_number(name, entry[name]) for name in names})
    # Written so that NaN is wrong as well.
    if not (0 < found.n_active <= found.n_spread and 0 <= found.seconds < np.inf):
        raise UsageError(f"waking is {found}: no routing is like that")
    return found
