"""Holds a contract against the raw rows: points not measured, few runs, unmarked spreads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.bench.contract import Contract, Place
from aerie.bench.gates.data import read_newest
from aerie.bench.rows import Row
from aerie.bench.summary import LEAST_RUNS, point

BASELINE = "reports/h200_baseline_raw.csv.xz"
STABLE = "stable"  # the mark of a point whose speed varies no more than is allowed
Rows = Mapping[tuple[str, int, int], Sequence[Row]]


@dataclass(frozen=True)
class MeasuredPoint:
    """One policy at one point of a contract."""

    name: str
    runs: int
    spread: float  # coefficient of variation of tokens/s
    mark: str
    n_texts: int  # groups of prompts that its runs continued
    digests: frozenset[str]  # of the contracts its runs name


@dataclass(frozen=True)
class Held:
    """A contract, what was measured of it, and what was not."""

    contract: Contract
    measured: tuple[MeasuredPoint, ...]
    missing: tuple[str, ...]  # scenarios, points, or policies of a point

    @property
    def loose(self) -> list[MeasuredPoint]:
        """Points that vary by more than the contract allows."""
        return [one for one in self.measured if one.spread > self.contract.measure.cov_limit]

    @property
    def faults(self) -> list[str]:
        """Points that may not count as they are."""
        thin = [one for one in self.measured if one.runs < LEAST_RUNS]
        return [
            *(f"{one.name} has {one.runs} runs" for one in thin),
            *(f"{one.name} varies unmarked" for one in self.loose if one.mark == STABLE),
        ]

    @property
    def has_other_terms(self) -> bool:
        """Whether a point was measured before the contract became what it is."""
        return any(one.digests != {self.contract.digest} for one in self.measured)

    @property
    def note(self) -> str:
        """The figures in a sentence."""
        marks = Counter(one.mark for one in self.loose)
        said = ", ".join(f"{n} {mark}" for mark, n in sorted(marks.items()))
        n_alike = sum(one.n_texts == 1 for one in self.measured)
        return (
            f"{self.contract.name}: {len(self.measured)} points,"
            f" {len(self.loose)} vary by more than {self.contract.measure.cov_limit:.0%}"
            f"{f' and say so ({said})' if said else ''},"
            f" {n_alike} continue the same prompts in every run"
        )


def hold(root: Path, contract: Contract) -> Held:
    """Compare every point and policy with the last session there."""
    rows: Rows = read_newest(root / BASELINE)
    places = contract.places()
    measured = [
        _measured(rows[place.key], f"{place} {policy}", policy)
        for place in places
        for policy in place.scenario.policies
        if _has(rows, place, policy)
    ]
    return Held(contract, tuple(measured), tuple(_missing(rows, places)))


def _has(rows: Rows, place: Place, policy: str) -> bool:
    return any(row.policy == policy for row in rows.get(place.key, ()))


def _measured(rows: Sequence[Row], name: str, policy: str) -> MeasuredPoint:
    found = point(rows, policy)
    own = [row for row in rows if row.policy == policy]
    return MeasuredPoint(
        name,
        found["runs"],
        found["cov"],
        found["stability"],
        len({row.prompts for row in own}),
        frozenset(row.contract for row in own),
    )


def _missing(rows: Rows, places: Sequence[Place]) -> list[str]:
    """Whole scenarios by their name alone."""
    found: dict[str, None] = {}
    for place in places:
        others = [other for other in places if other.scenario is place.scenario]
        if not any(other.key in rows for other in others):
            found[place.scenario.name] = None
        elif place.key not in rows:
            found[str(place)] = None
        else:
            gone = [p for p in place.scenario.policies if not _has(rows, place, p)]
            found |= {f"{place} {policy}": None for policy in gone}
    return list(found)
