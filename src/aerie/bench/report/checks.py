"""Judges the rows of the scorecard by what lies in the checkout; nothing is measured here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from aerie.bench.gates.gate import Verdict
from aerie.bench.report.origin import Origin, origin_of
from aerie.bench.report.rows import Artifact, Check, Row

PASS, FAIL, OPEN, NOT_NEEDED = "pass", "fail", "open", "not needed"
STATUSES = (PASS, FAIL, OPEN, NOT_NEEDED)
_ON_A_GPU = "tests/gpu/"
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda found, bound: found >= bound,
    "at_most": lambda found, bound: found <= bound,
    "equals": lambda found, bound: found == bound,
}


@dataclass(frozen=True)
class Evidence:
    """Everything the rows are judged by."""

    root: Path
    artifacts: Sequence[Artifact]
    gates: Sequence[Verdict]
    parity: Mapping[str, str]  # by backend: why the parity matrix does not speak for it, or ""


@dataclass(frozen=True)
class Finding:
    """What one check found; `place` is the file or test behind it."""

    status: str
    note: str
    place: str
    origin: Origin | None = None


@dataclass(frozen=True)
class Judged:
    """A row with its verdict."""

    row: Row
    status: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]


def judge(row: Row, evidence: Evidence) -> Judged:
    """A row fails if one check fails, and passes if all do."""
    if row.not_needed:
        return Judged(row, NOT_NEEDED, (row.not_needed,), ())
    findings = tuple(found for check in row.checks for found in _look(check, evidence))
    open_notes = [found.note for found in findings if found.status == OPEN]
    failures = [found.note for found in findings if found.status == FAIL]
    if row.missing:
        open_notes.append(row.missing)
    if not findings and not row.missing:
        open_notes.append("no evidence is named")
    if row.kernels and not open_notes and (reason := _parity_reason(row.kernels, evidence)):
        # Missing parity blocks a claim about speed, however good the number is.
        failures.append(f"parity of {row.kernels}: {reason}")
    status = FAIL if failures else OPEN if open_notes else PASS
    notes = failures + open_notes or [found.note for found in findings if found.note]
    return Judged(row, status, tuple(dict.fromkeys(notes)), findings)


def _look(check: Check, evidence: Evidence) -> Iterable[Finding]:
    looks = {"test": _test, "file": _file, "record": _record, "gate": _gate, "parity": _parity}
    return looks[check.subject](check, evidence)


def _test(check: Check, evidence: Evidence) -> list[Finding]:
    path, _, name = check.target.partition("::")
    file = evidence.root / path
    if path.startswith(_ON_A_GPU):
        return [Finding(OPEN, f"{check.target} runs on a GPU only, not in CI", path)]
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not re.search(rf"^(async )?def {re.escape(name)}\(", text, re.MULTILINE):
        return [Finding(OPEN, f"no test {check.target}", path)]
    return [Finding(PASS, "", check.target)]


def _file(check: Check, evidence: Evidence) -> list[Finding]:
    origin = origin_of(evidence.root, check.target, evidence.artifacts)
    if not (evidence.root / check.target).exists():
        return [Finding(OPEN, f"{check.target} is missing", check.target, origin)]
    if check.target.startswith("reports/") and not origin.is_known:
        return [Finding(OPEN, f"{check.target} names no commit", check.target, origin)]
    return [Finding(PASS, "", check.target, origin)]


def _record(check: Check, evidence: Evidence) -> list[Finding]:
    (found,) = _file(check, evidence)
    if found.status != PASS:
        return [found]
    values = json.loads((evidence.root / check.target).read_text(encoding="utf-8"))
    figures = list(_figures(values, check.field.split(".")))
    place, origin = check.target, found.origin
    if not figures:
        return [Finding(OPEN, f"{check.target} has no field {check.field}", place, origin)]
    wrong = [figure for figure in figures if not _holds(check, figure)]
    if wrong:
        return [Finding(FAIL, f"{check}: found {wrong[0]}", place, origin)]
    return [Finding(PASS, _shown(check, figures), place, origin)]


def _holds(check: Check, figure: object) -> bool:
    # A figure that was not measured is no figure, and True is not 1.
    if figure is None or isinstance(figure, bool) != isinstance(check.value, bool):
        return False
    return _BOUNDS[check.bound](figure, check.value)


def _shown(check: Check, figures: Sequence[object]) -> str:
    if isinstance(check.value, bool | str):
        return ""
    worst = min if check.bound == "at_least" else max
    limit = {"at_least": "≥", "at_most": "≤", "equals": "="}[check.bound]
    return f"{check.field} {worst(figures)} ({limit} {check.value})"  # type: ignore[type-var]


def _figures(values: Any, path: Sequence[str]) -> Iterable[Any]:
    """Every value a dotted path leads to.

    `*` stands for all entries of a list or table, `key=text,…` for those with these values, a
    number for one entry of a list.
    """
    if not path:
        return [values]
    key, rest = path[0], path[1:]
    if key == "*" or "=" in key:
        inner = values.values() if isinstance(values, dict) else values
        wanted = [pair.split("=") for pair in key.split(",") if pair != "*"]
        chosen = [e for e in inner if all(str(e.get(name)) == text for name, text in wanted)]
        return [figure for entry in chosen for figure in _figures(entry, rest)]
    if isinstance(values, list) and key.isdigit() and int(key) < len(values):
        return _figures(values[int(key)], rest)
    if not isinstance(values, dict) or key not in values:
        return []
    return _figures(values[key], rest)


def _gate(check: Check, evidence: Evidence) -> list[Finding]:
    found = [gate for gate in evidence.gates if fnmatch(gate.name, check.target)]
    if not found:
        nothing = Origin("", "aerie gates", "")
        return [Finding(OPEN, f"no gate {check.target} has data", "gates/", nothing)]
    return [_of_gate(gate, evidence) for gate in found]


def _of_gate(gate: Verdict, evidence: Evidence) -> Finding:
    # A gate may compare two files; the first is the one it is about.
    place = f"reports/{gate.source.split()[0]}"
    origin = origin_of(evidence.root, place, evidence.artifacts)
    if gate.value is None:
        return Finding(OPEN, gate.reason, place, origin)
    note = f"{gate.name}: {gate.value:.4g} ({shown_floor(gate)})"
    if gate.passed:
        return Finding(PASS, note, place, origin)
    return Finding(FAIL, f"{note}, {gate.reason}", place, origin)


def shown_floor(gate: Verdict) -> str:
    """The bound of a gate as tables write it."""
    return f"{'≥' if gate.sense == 'at_least' else '≤'} {gate.floor:g}"


def _parity(check: Check, evidence: Evidence) -> list[Finding]:
    place = "reports/p0_parity_matrix.json"
    origin = origin_of(evidence.root, place, evidence.artifacts)
    reason = _parity_reason(check.target, evidence)
    status = FAIL if reason else PASS
    note = f"parity of {check.target}: {reason}" if reason else ""
    return [Finding(status, note, place, origin)]


def _parity_reason(backend: str, evidence: Evidence) -> str:
    return evidence.parity.get(backend, "no parity matrix was read")
