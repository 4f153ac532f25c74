"""Holds a contract against the raw rows: points not measured, few runs, unmarked spreads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.contract import Contract
from aerie.bench.gates.data import read_newest
from aerie.bench.rows import Row
from aerie.bench.summary import LEAST_RUNS, point

BASELINE = "reports/h200_baseline_raw.csv.xz"
STABLE = "stable"  # the mark of a point whose speed varies no more than is allowed


@dataclass(frozen=True)
class MeasuredPoint:
    """One policy at one point of a contract."""

    name: str
    found: Mapping[str, Any]  # what `summary.point` says of it
    rows: Sequence[Row]


@dataclass(frozen=True)
class Held:
    """A contract, what was measured of it, and what was not."""

    contract: Contract
    measured: tuple[MeasuredPoint, ...]
    missing: tuple[str, ...]  # scenarios, points, or policies of a point

    @property
    def loose(self) -> list[MeasuredPoint]:
        """Points that vary by more than the contract allows."""
        return [one for one in self.measured if one.found["cov"] > self.contract.measure.cov_limit]

    @property
    def faults(self) -> list[str]:
        """Points that may not count as they are."""
        thin = [one for one in self.measured if len(one.rows) < LEAST_RUNS]
        unmarked = [one for one in self.loose if one.found["stability"] == STABLE]
        return [
            *(f"{one.name} has {len(one.rows)} runs" for one in thin),
            *(f"{one.name} varies unmarked" for one in unmarked),
        ]

    @property
    def has_other_terms(self) -> bool:
        """Whether a point was measured before the contract became what it is."""
        return any(
            row.contract != self.contract.digest for one in self.measured for row in one.rows
        )

    @property
    def note(self) -> str:
        """The figures in a sentence."""
        marks = Counter(one.found["stability"] for one in self.loose)
        said = ", ".join(f"{n} {mark}" for mark, n in sorted(marks.items()))
        n_alike = sum(len({row.prompts for row in one.rows}) == 1 for one in self.measured)
        return (
            f"{self.contract.name}: {len(self.measured)} points,"
            f" {len(self.loose)} vary by more than {self.contract.measure.cov_limit:.0%}"
            f"{f' and say so ({said})' if said else ''},"
            f" {n_alike} continue the same prompts in every run"
        )


def hold(root: Path, contract: Contract) -> Held:
    """Compare every point and policy with the last session there."""
    rows, places = read_newest(root / BASELINE), contract.places()
    measured: list[MeasuredPoint] = []
    missing: dict[str, None] = {}  # whole scenarios by their name alone
    begun = {place.scenario.name for place in places if place.key in rows}
    for place in places:
        here = rows.get(place.key, [])
        for policy in place.scenario.policies:
            own = [row for row in here if row.policy == policy]
            if own:
                measured.append(MeasuredPoint(f"{place} {policy}", point(here, policy), own))
            elif place.scenario.name not in begun:
                missing[place.scenario.name] = None
            else:
                missing[f"{place} {policy}" if here else str(place)] = None
    return Held(contract, tuple(measured), tuple(missing))
