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
from aerie.bench.record import read_json
from aerie.bench.rows import Row
from aerie.bench.summary import (
    acceptance,
    against,
    best_fixed,
    is_repeatable,
    pairs,
    share_of_ceiling,
)
from aerie.errors import UnknownNameError, UsageError
from aerie.text.loops import is_loop_free

MATRIX = "p0_parity_matrix.json"
# Columns of kernels that were measured and have changed since stay beside the matrix.
EARLIER = "parity_earlier_*.json"
SENSES: dict[str, Callable[[float, float], bool]] = {
    "at_least": lambda value, bound: value >= bound,
    "at_most": lambda value, bound: value <= bound,
}


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
    if gate.check == "record":
        record = folder.record(gate.file)
        given = {(str(record.get("kernel_sha256", "")), str(record["provenance"]["commit"]))}
    else:
        rows = [row for own in folder.places(gate).values() for row in own]
        given = {(row.kernel_sha256, row.commit) for row in rows}
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


def _ratio(gate: Gate, folder: Folder, other: str | None = PLAIN) -> float:
    """The least median ratio over the gate's points; `other` None: to the best fixed policy."""
    values = []
    for key, own in folder.places(gate).items():
        where = f"{key[0]} {key[1]}x{key[2]}"
        share = share_of_ceiling(own)
        if share < LEAST_SHARE:
            raise Refused(f"{where}: plain decoding reaches {share:.2f} of its ceiling")
        rival = best_fixed(own) if other is None else other
        if rival is None:
            continue
        found = pairs(own, gate.policy, rival)
        if len(found.values) < folder.least_pairs:
            raise Refused(f"{where}: {len(found.values)} interleaved pairs")
        # A rival that was chosen on half of the turns is held against on the others.
        judged = against(own, rival) if other is None else found
        values.append(judged.interval.median)
    if not values:
        raise Refused("no point has both policies")
    return min(values)


def _best_fixed(gate: Gate, folder: Folder) -> float:
    return _ratio(gate, folder, None)


def _runs(gate: Gate, folder: Folder) -> list[list[Row]]:
    """The gate's policy, by point."""
    places = folder.places(gate).values()
    return [[row for row in own if row.policy == gate.policy] for own in places]


def _acceptance(gate: Gate, folder: Folder) -> float:
    return min(acceptance(rows) for rows in _runs(gate, folder))


def _fresh_acceptance(gate: Gate, folder: Folder) -> float:
    """Acceptance over the runs whose texts do not loop."""
    fresh = [
        [row for row in rows if is_loop_free(row.repeated_8gram_share)]
        for rows in _runs(gate, folder)
    ]
    if not all(fresh):
        raise Refused("every text loops")
    return min(acceptance(rows) for rows in fresh)


def _repeatable(gate: Gate, folder: Folder) -> float:
    """1 if equal prompts gave equal texts in every turn."""
    return float(all(is_repeatable(rows) for rows in _runs(gate, folder)))


def _tuned(gate: Gate, folder: Folder) -> float:
    """Share of tuned products and tiles among all that were asked for."""
    rows = [row for own in folder.places(gate).values() for row in own]
    if not all(row.tuned_total for row in rows):
        raise Refused("no tuned table was asked")
    return min(row.tuned_hits / row.tuned_total for row in rows)


def _texts(gate: Gate, folder: Folder) -> float:
    """Prompts a policy continued by 1,024 tokens and more, of the point with fewest."""
    long = [[row for row in rows if row.new_tokens >= 1024] for rows in _runs(gate, folder)]
    return float(min(len({n for row in rows for n in row.prompts.split(";")}) for rows in long))


def _record(gate: Gate, folder: Folder) -> float:
    return float(_follow(folder.record(gate.file), gate))


def _follow(values: Any, gate: Gate) -> float:
    found = values
    for part in gate.path.split("."):
        try:
            found = _entry(found, part) if isinstance(found, list) else found[part]
        except (KeyError, StopIteration, TypeError):
            raise Refused(f"{gate.file} has no {gate.path}") from None
    if isinstance(found, bool | int | float):
        return float(found)
    raise Refused(f"{gate.path} of {gate.file} is no number")


def _entry(listed: list[Mapping[str, Any]], wanted: str) -> Mapping[str, Any]:
    """The entry of a list whose values are those of `rows=16,batch=1`."""
    values = dict(part.split("=") for part in wanted.split(","))
    return next(e for e in listed if all(str(e.get(k)) == v for k, v in values.items()))


def _round_tax(gate: Gate, folder: Folder) -> float:
    """A speculative round over a plain step, from the times of every one of them."""
    raw = folder.record(gate.file)["raw_ms"]
    return float(statistics.median(raw["round"]) / statistics.median(raw["plain"]))


def _plain_share(gate: Gate, folder: Folder) -> float:
    """Time the bytes of a plain step take at a copy's speed, over what a step took."""
    record = folder.record(gate.file)
    floor = 1e3 * record["plain"]["bytes"] / (record["ceiling"]["gbps"] * 1e9)
    return float(floor / statistics.median(record["raw_ms"]["plain"]))


def _drift(gate: Gate, folder: Folder) -> float:
    """How far two records' figures lie apart: `file` is two names with a space."""
    left, right = (_follow(folder.record(name), gate) for name in gate.file.split())
    return abs(left / right - 1.0)


def _tiles(gate: Gate, folder: Folder) -> float:
    """Shipped attention tiles over the fastest of the sweep that chose them, the worst of all."""
    from aerie.bench.profile.tuning import check_tiles

    return max(float(entry["ratio_to_best"]) for entry in check_tiles(folder.record(gate.file)))


CHECKS: dict[str, Callable[[Gate, Folder], float]] = {
    "ratio": _ratio,
    "best_fixed": _best_fixed,
    "acceptance": _acceptance,
    "fresh_acceptance": _fresh_acceptance,
    "repeatable": _repeatable,
    "tuned": _tuned,
    "texts": _texts,
    "record": _record,
    "drift": _drift,
    "round_tax": _round_tax,
    "plain_share": _plain_share,
    "tiles": _tiles,
}


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
            if name != "gates":
                raise UnknownNameError(f"key of {path.name}", name, ("gates",))
        found += [strict(Gate, own) for own in values["gates"]]
    for gate in found:
        if gate.check not in CHECKS:
            raise UnknownNameError(f"check of {gate.name!r}", gate.check, CHECKS)
        if gate.sense not in SENSES:
            raise UnknownNameError(f"sense of {gate.name!r}", gate.sense, SENSES)
        if gate.sources not in KINDS:
            raise UnknownNameError(f"sources of {gate.name!r}", gate.sources, KINDS)
    return found


def judge(gates: Sequence[Gate], folder: Folder) -> list[Verdict]:
    """Every gate against the data; what cannot be told does not pass."""
    return [_verdict(gate, folder) for gate in gates]


def _verdict(gate: Gate, folder: Folder) -> Verdict:
    value, reason = None, ""
    changed: tuple[str, ...] = ()
    try:
        value = CHECKS[gate.check](gate, folder)
        if gate.parity is not None:
            require_parity(gate, folder)
        changed = folder.ages.changed(folder.measured(gate), gate.sources)
    except Refused as error:
        reason = str(error)
    is_met = value is not None and not reason and SENSES[gate.sense](value, gate.floor)
    if value is not None and not reason and not is_met:
        reason = f"{value:.4g} is not {gate.sense.replace('_', ' ')} {gate.floor:g}"
    shown = None if value is None else round(value, 4)
    return Verdict(
        gate.name, shown, gate.floor, gate.aim, gate.sense, is_met, gate.file, reason, changed
    )
