"""Judges the rows of the scorecard by what lies in the checkout; nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from aerie.bench.contract import read_contract
from aerie.bench.gates.data import UNTOLD, Ages
from aerie.bench.gates.gate import Verdict
from aerie.bench.record import BOUNDS, figures, read_json
from aerie.bench.report.baseline import BASELINE, hold
from aerie.bench.report.origin import Origin, changed_since, origin_of
from aerie.bench.report.rows import (
    PASSED,
    Artifact,
    Check,
    Result,
    Row,
    code_of_test,
    find_test,
    is_empty,
    results_of,
)

# A stale row would pass, but something it stands on has changed since.
PASS, STALE, FAIL, OPEN, NOT_NEEDED = "pass", "stale", "fail", "open", "not needed"
STATUSES = (PASS, STALE, FAIL, OPEN, NOT_NEEDED)
_ON_A_GPU = "tests/gpu/"


@dataclass(frozen=True)
class Parity:
    """What the parity matrix says of a backend; empty texts where there is nothing to say."""

    failed: str = ""  # cases that fail, or that there is no matrix of it
    changed: str = ""  # what was changed since the matrix was made


@dataclass(frozen=True)
class Evidence:
    """Everything the rows are judged by."""

    root: Path
    artifacts: Sequence[Artifact]
    gates: Sequence[Verdict]
    parity: Mapping[str, Parity]  # by backend
    ages: Ages = UNTOLD
    results: Mapping[str, Mapping[str, Result]] = field(default_factory=dict)  # of the last runs


@dataclass(frozen=True)
class Finding:
    """What one check found; `place` is the file or test behind it."""

    status: str
    note: str
    place: str
    origin: Origin | None = None
    changed: tuple[str, ...] = ()  # what is not as it was when the evidence was made


@dataclass(frozen=True)
class Judged:
    """A row with its verdict."""

    row: Row
    status: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    changed: tuple[str, ...] = ()  # why it is stale


def judge(row: Row, evidence: Evidence) -> Judged:
    """A row fails if one check fails, and passes if all do; stale if it stands on older sources."""
    if row.not_needed:
        return Judged(row, NOT_NEEDED, (row.not_needed,), ())
    findings = tuple(
        found for check in row.checks for found in LOOKS[check.subject](check, evidence)
    )
    open_notes = [found.note for found in findings if found.status == OPEN]
    failures = [found.note for found in findings if found.status == FAIL]
    changed = [part for found in findings for part in found.changed]
    if row.missing:
        open_notes.append(row.missing)
    if not findings and not row.missing:
        open_notes.append("no evidence is named")
    if row.kernels and not open_notes:
        # Missing parity blocks a claim about speed, however good the number is.
        (parity,) = _parity(Check("parity", row.kernels), evidence)
        failures += [parity.note] if parity.status == FAIL else []
        changed += parity.changed
    status = FAIL if failures else OPEN if open_notes else STALE if changed else PASS
    said = [found.note for found in findings if found.note and found.status == PASS]
    notes = failures or open_notes + said
    unique = tuple(sorted(set(changed))) if status == STALE else ()
    return Judged(row, status, tuple(dict.fromkeys(notes)), findings, unique)


def _test(check: Check, evidence: Evidence) -> list[Finding]:
    """By the last full run: a test that is gone, empty, skipped or failed proves nothing."""
    if check.target.startswith(_ON_A_GPU):
        return [Finding(OPEN, f"{check.target} runs on a GPU only, not in CI", check.target)]
    function = find_test(evidence.root, check.target)
    if function is None:
        return [Finding(FAIL, f"no test {check.target}", check.target)]
    if is_empty(function):
        return [Finding(FAIL, f"{check.target} asserts nothing", check.target)]
    said, code = results_of(evidence.results, check.target), code_of_test(function)
    bad = [result for result in said if result.code == code and result.outcome != PASSED]
    if bad:
        return [Finding(FAIL, f"{check.target} {bad[0].outcome}", check.target)]
    # A test of which some ids are slow has two results; one that is older spoils the other.
    if said and all(result.code == code for result in said):
        return [Finding(PASS, "", check.target)]
    word = "changed" if said else "new"
    return [Finding(PASS, "", check.target, None, (f"{check.target} {word}: run the tests again",))]


def _file(check: Check, evidence: Evidence) -> list[Finding]:
    target = check.target
    origin = origin_of(evidence.root, target, evidence.artifacts)
    if not (evidence.root / target).exists():
        return [Finding(OPEN, f"{target} is missing", target, origin)]
    if target.startswith("reports/") and not origin.is_known:
        return [Finding(OPEN, f"{target} names no commit", target, origin)]
    changed = changed_since(evidence.root, target, evidence.artifacts, evidence.ages)
    return [Finding(PASS, "", target, origin, changed)]


def _contract(check: Check, evidence: Evidence) -> list[Finding]:
    """Every point of a contract was measured, often enough, and says so where it varies."""
    origin = origin_of(evidence.root, BASELINE, evidence.artifacts)
    held = hold(evidence.root, read_contract(evidence.root / check.target))
    if held.faults:
        return [Finding(FAIL, "; ".join(held.faults), BASELINE, origin)]
    changed = (f"{check.target} changed",) if held.has_other_terms else ()
    said = Finding(OPEN if held.missing else PASS, held.note, BASELINE, origin, changed)
    if not held.missing:
        return [said]
    absent = f"{check.target}: no rows of {', '.join(held.missing)}"
    return [said, Finding(OPEN, absent, BASELINE, origin)]


def _record(check: Check, evidence: Evidence) -> list[Finding]:
    (found,) = _file(check, evidence)
    if found.status != PASS:
        return [found]
    values = read_json(evidence.root / check.target)
    said = figures(values, check.field)
    place, origin = check.target, found.origin
    if not said:
        return [Finding(OPEN, f"{check.target} has no field {check.field}", place, origin)]
    measured = [figure for figure in said if figure is not None]
    wrong = [figure for figure in measured if not _holds(check, figure)]
    if wrong:
        return [Finding(FAIL, f"{check}: found {wrong[0]}", place, origin)]
    if len(measured) < len(said):
        n_absent = len(said) - len(measured)
        note = f"{check.field} of {place} was not measured at {n_absent} of {len(said)}"
        return [Finding(OPEN, note, place, origin)]
    return [Finding(PASS, _shown(check, said), place, origin, found.changed)]


def _holds(check: Check, figure: object) -> bool:
    # True is not 1.
    if isinstance(figure, bool) != isinstance(check.value, bool):
        return False
    return BOUNDS[check.bound][1](figure, check.value)


def _shown(check: Check, figures: Sequence[object]) -> str:
    if isinstance(check.value, bool | str):
        return ""
    worst = min if check.bound == "at_least" else max
    sign = BOUNDS[check.bound][0]
    return f"{check.field} {worst(figures)} ({sign} {check.value})"  # type: ignore[type-var]


def _gate(check: Check, evidence: Evidence) -> list[Finding]:
    found = [gate for gate in evidence.gates if fnmatch(gate.name, check.target)]
    if not found:
        nothing = Origin("", "aerie gates", "")
        return [Finding(OPEN, f"no gate {check.target} has data", "evidence/gates/", nothing)]
    return [_of_gate(gate, evidence) for gate in found]


def _of_gate(gate: Verdict, evidence: Evidence) -> Finding:
    # A gate may compare two files; the first is the one it is about.
    place = f"reports/{gate.source.split()[0]}"
    origin = origin_of(evidence.root, place, evidence.artifacts)
    if gate.value is None:
        return Finding(OPEN, gate.reason, place, origin)
    note = f"{gate.name}: {gate.value:.4g} ({shown_floor(gate)})"
    if gate.passed:
        return Finding(PASS, note, place, origin, gate.changed)
    return Finding(FAIL, f"{note}, {gate.reason}", place, origin)


def shown_floor(gate: Verdict) -> str:
    """The bound of a gate as tables write it."""
    return f"{BOUNDS[gate.sense][0]} {gate.floor:g}"


def _parity(check: Check, evidence: Evidence) -> list[Finding]:
    place = "reports/p0_parity_matrix.json"
    origin = origin_of(evidence.root, place, evidence.artifacts)
    found = evidence.parity.get(check.target, Parity(failed="no parity matrix was read"))
    if found.failed:
        return [Finding(FAIL, f"parity of {check.target}: {found.failed}", place, origin)]
    changed = (f"parity of {check.target}: {found.changed}",) if found.changed else ()
    return [Finding(PASS, "", place, origin, changed)]


LOOKS: dict[str, Callable[[Check, Evidence], list[Finding]]] = {
    "test": _test,
    "file": _file,
    "record": _record,
    "gate": _gate,
    "parity": _parity,
    "contract": _contract,
}
