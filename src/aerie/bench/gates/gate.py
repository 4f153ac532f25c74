"""Gates: floors in TOML files, each held against a figure computed from recorded data."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.contract import LEAST_SHARE, PLAIN, strict
from aerie.bench.gates.data import KINDS, Folder, Gate, Refused
from aerie.bench.record import BOUNDS, figures, read_json
from aerie.bench.rows import Row
from aerie.bench.summary import (
    Pairs,
    acceptance,
    against,
    best_fixed,
    is_repeatable,
    pairs,
    share_of_ceiling,
)
from aerie.config.values import choice
from aerie.errors import UsageError
from aerie.text.loops import is_loop_free

MATRIX = "p0_parity_matrix.json"
# Columns of kernels that were measured and have changed since stay beside the matrix.
EARLIER = "raw/parity_earlier_*.json"


def require_parity(gate: Gate, folder: Folder) -> None:
    """Refuse a figure whose kernels have no whole column in the matrix or beside it."""
    own = [column for column in _columns(folder.root) if column["backend"] == gate.parity]
    if not own:
        raise Refused(f"the parity matrix has no column of {gate.parity}")
    for column in own:
        passed = sum(cell["passed"] for cell in column["cells"])
        n_cases = sum(cell["cases"] for cell in column["cells"])
        if column["failed"] or passed < n_cases:
            raise Refused(f"parity of {gate.parity}: {passed} of {n_cases} cases")
    proven = {column["sources_sha256"] for column in own}
    if not all(proven & names for names in kernel_names(gate, folder)):
        raise Refused(f"the parity matrix of {gate.parity} is of other kernel sources")


def kernel_names(gate: Gate, folder: Folder) -> list[set[str]]:
    """For every kind of kernels a gate's figures were measured with, the hashes it goes by.

    Records carry the hash of the day they were made, which was of bytes once and is of syntax
    trees now; the second is found by the commit.
    """
    given = {(str(own.get("kernel_sha256") or ""), own["commit"]) for own in folder.origins(gate)}
    backend = gate.parity or ""
    return [
        {kernels, folder.ages.backend_at(commit, backend)} - {""}
        for kernels, commit in given
        if kernels
    ]


def _columns(root: Path) -> list[Mapping[str, Any]]:
    """Columns of the parity matrix, and of earlier kernels that figures were measured with."""
    if not (root / MATRIX).is_file():
        raise Refused(f"{MATRIX} does not exist")
    files = [root / MATRIX, *sorted(root.glob(EARLIER))]
    return [c for path in files for c in read_json(path)["columns"]]


def _ratio(point: Point) -> float:
    """The median ratio to plain decoding."""
    return point.over(PLAIN, pairs(point.rows, point.policy))


def _best_fixed(point: Point) -> float | None:
    """To the fastest fixed policy, on turns that it was not chosen by."""
    rival = best_fixed(point.rows)
    return None if rival is None else point.over(rival, against(point.rows, rival))


def _fresh_acceptance(point: Point) -> float:
    """Acceptance over the runs whose texts do not loop."""
    fresh = [row for row in point.own if is_loop_free(row.repeated_8gram_share)]
    if not fresh:
        raise Refused("every text loops")
    return acceptance(fresh)


def _tuned(point: Point) -> float:
    """Share of tuned products and tiles among all that were asked for."""
    if not all(row.tuned_total for row in point.rows):
        raise Refused("no tuned table was asked")
    return min(row.tuned_hits / row.tuned_total for row in point.rows)


def _texts(point: Point) -> float:
    """Prompts a policy continued by 1,024 tokens and more."""
    long = (row.prompts.split(";") for row in point.own if row.new_tokens >= 1024)
    return float(len({name for names in long for name in names}))


@dataclass(frozen=True)
class Point:
    """All rows of a point that a gate is about."""

    rows: Sequence[Row]
    policy: str
    least_pairs: int

    @property
    def own(self) -> list[Row]:
        """Those of the gate's policy."""
        return [row for row in self.rows if row.policy == self.policy]

    def over(self, rival: str, judged: Pairs) -> float:
        """The median of some pairs, where there are enough and plain decoding is no slow one."""
        share = share_of_ceiling(self.rows)
        if share < LEAST_SHARE:
            raise Refused(f"plain decoding reaches {share:.2f} of its ceiling")
        n_pairs = len(pairs(self.rows, self.policy, rival).values)
        if n_pairs < self.least_pairs:
            raise Refused(f"{n_pairs} interleaved pairs")
        return judged.interval.median


def _follow(values: Any, gate: Gate) -> float:
    found = figures(values, gate.path)
    if not found:
        raise Refused(f"{gate.file} has no {gate.path}")
    if isinstance(found[0], bool | int | float):
        return float(found[0])
    raise Refused(f"{gate.path} of {gate.file} is no number")


def _round_tax(record: Any, gate: Gate) -> float:
    """A speculative round over a plain step, from the times of every one of them."""
    raw = record["raw_ms"]
    return float(statistics.median(raw["round"]) / statistics.median(raw["plain"]))


def _plain_share(record: Any, gate: Gate) -> float:
    """Time the bytes of a plain step take at a copy's speed, over what a step took."""
    floor = 1e3 * record["plain"]["bytes"] / (record["ceiling"]["gbps"] * 1e9)
    return float(floor / statistics.median(record["raw_ms"]["plain"]))


def _tiles(record: Any, gate: Gate) -> float:
    """Shipped attention tiles over the fastest of the sweep that chose them, the worst of all."""
    from aerie.bench.profile.tuning import check_tiles

    return max(float(entry["ratio_to_best"]) for entry in check_tiles(record))


# A figure of raw rows, of the point that has the least; and one of a record.
OF_POINTS: dict[str, Callable[[Point], float | None]] = {
    "ratio": _ratio,
    "best_fixed": _best_fixed,
    "acceptance": lambda point: acceptance(point.own),
    "fresh_acceptance": _fresh_acceptance,
    # 1 if equal prompts gave equal texts in every turn.
    "repeatable": lambda point: float(is_repeatable(point.own)),
    "tuned": _tuned,
    "texts": _texts,
}
OF_RECORDS: dict[str, Callable[[Any, Gate], float]] = {
    "record": _follow,
    "drift": _follow,  # how far two records lie apart: `file` is two names with a space
    "round_tax": _round_tax,
    "plain_share": _plain_share,
    "tiles": _tiles,
}
CHECKS = (*OF_POINTS, *OF_RECORDS)


def _value(gate: Gate, folder: Folder) -> float:
    if gate.check in OF_RECORDS:
        records = [folder.record(name) for name in gate.file.split()]
        value, *other = (OF_RECORDS[gate.check](record, gate) for record in records)
        return abs(value / other[0] - 1.0) if other else value
    values = []
    for (scenario, batch, context), rows in folder.places(gate).items():
        try:
            found = OF_POINTS[gate.check](Point(rows, gate.policy, folder.least_pairs))
        except Refused as error:
            raise Refused(f"{scenario} {batch}x{context}: {error}") from error
        values += [] if found is None else [found]
    if not values:
        raise Refused("no point has both policies")
    return min(values)


@dataclass(frozen=True)
class Verdict:
    """What a gate says; `value` is None where there is no figure that counts."""

    name: str
    value: float | None
    floor: float
    aim: float | None
    sense: str
    passed: bool
    source: str
    reason: str = ""
    changed: tuple[str, ...] = ()  # parts of the sources that are not as they were measured


def read_gates(folder: Path) -> list[Gate]:
    """Every gate of a folder's TOML files."""
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise UsageError(f"no gates in {folder}")
    found: list[Gate] = []
    for path in files:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        for name in values:
            choice(f"key of {path.name}", name, ("gates",))
        found += [strict(Gate, own) for own in values["gates"]]
    for gate in found:
        choice(f"check of {gate.name!r}", gate.check, CHECKS)
        choice(f"sense of {gate.name!r}", gate.sense, BOUNDS)
        choice(f"sources of {gate.name!r}", gate.sources, KINDS)
    return found


def judge(gates: Sequence[Gate], folder: Folder) -> list[Verdict]:
    """Every gate against the data; what cannot be told does not pass."""
    return [_verdict(gate, folder) for gate in gates]


def _verdict(gate: Gate, folder: Folder) -> Verdict:
    value, is_met, reason = None, False, ""
    changed: tuple[str, ...] = ()
    try:
        value = _value(gate, folder)
        if gate.parity is not None:
            require_parity(gate, folder)
        changed = folder.ages.changed(folder.measured(gate), gate.sources)
        is_met = BOUNDS[gate.sense][1](value, gate.floor)
        if not is_met:
            reason = f"{value:.4g} is not {gate.sense.replace('_', ' ')} {gate.floor:g}"
    except Refused as error:
        reason = str(error)
    shown = None if value is None else round(value, 4)
    return Verdict(
        gate.name, shown, gate.floor, gate.aim, gate.sense, is_met, gate.file, reason, changed
    )
