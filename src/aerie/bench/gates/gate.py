"""Gates: floors in TOML files, held against recorded data."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.bench.contract import strict
from aerie.bench.gates.ages import KINDS
from aerie.bench.gates.checks import CHECKS
from aerie.bench.gates.data import Folder, Gate, Refused
from aerie.bench.gates.parity import require_parity
from aerie.errors import UnknownNameError, UsageError

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
