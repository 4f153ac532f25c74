"""Gates: floors in TOML files, held against recorded data."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.gates.checks import CHECKS
from aerie.bench.gates.data import Folder, Gate, Refused
from aerie.bench.gpu.contract import strict
from aerie.errors import UnknownNameError, UsageError

MATRIX = "p0_parity_matrix.json"
# Columns of kernels that were measured and have changed since stay beside the matrix.
EARLIER = "parity_earlier_*.json"
SENSES: dict[str, Callable[[float, float], bool]] = {
    "at_least": lambda value, bound: value >= bound,
    "at_most": lambda value, bound: value <= bound,
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
    return found


def judge(gates: Sequence[Gate], folder: Folder) -> list[Verdict]:
    """Every gate against the data; what cannot be told does not pass."""
    return [_verdict(gate, folder) for gate in gates]


def _verdict(gate: Gate, folder: Folder) -> Verdict:
    value, reason = None, ""
    try:
        value = CHECKS[gate.check](gate, folder)
        if gate.parity is not None:
            _require_parity(gate, folder)
    except Refused as error:
        reason = str(error)
    is_met = value is not None and not reason and SENSES[gate.sense](value, gate.floor)
    if value is not None and not reason and not is_met:
        reason = f"{value:.4g} is not {gate.sense.replace('_', ' ')} {gate.floor:g}"
    shown = None if value is None else round(value, 4)
    return Verdict(gate.name, shown, gate.floor, gate.aim, gate.sense, is_met, gate.file, reason)


def _require_parity(gate: Gate, folder: Folder) -> None:
    """A speed counts only for kernels that were proven: all cases passed, of these sources."""
    if gate.check == "record":
        measured = {str(folder.record(gate.file).get("kernel_sha256", ""))} - {""}
    else:
        rows = [row for own in folder.places(gate).values() for row in own]
        measured = {row.kernel_sha256 for row in rows}
    own = [column for column in _columns(folder.root) if column["backend"] == gate.parity]
    if not own:
        raise Refused(f"the parity matrix has no column of {gate.parity}")
    for column in own:
        passed = sum(cell["passed"] for cell in column["cells"])
        n_cases = sum(cell["cases"] for cell in column["cells"])
        if column["failed"] or passed < n_cases:
            raise Refused(f"parity of {gate.parity}: {passed} of {n_cases} cases")
    if not measured <= {column["sources_sha256"] for column in own}:
        raise Refused(f"the parity matrix of {gate.parity} is of other kernel sources")


def _columns(root: Path) -> list[Mapping[str, Any]]:
    """Columns of the parity matrix, and of earlier kernels that figures were measured with."""
    if not (root / MATRIX).is_file():
        raise Refused(f"{MATRIX} does not exist")
    files = [root / MATRIX, *sorted(root.glob(EARLIER))]
    return [c for path in files for c in json.loads(path.read_text(encoding="utf-8"))["columns"]]
