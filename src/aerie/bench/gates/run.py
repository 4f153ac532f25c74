"""`aerie gates run`: measure, then judge; and what a new parity matrix must leave behind."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aerie.bench.contract import Contract
from aerie.bench.experiment import Experiment
from aerie.bench.gates.data import Folder, Gate, Refused, read_ages
from aerie.bench.gates.gate import EARLIER, MATRIX, Verdict, judge, kernel_names, read_gates
from aerie.bench.record import read_json, write_json
from aerie.bench.rows import Row
from aerie.errors import UsageError

TOKEN = "gates_micro.json"
PASSES = 3


def run_suite(session: Experiment, gates: Sequence[Gate], suite: str, out: Path) -> list[Verdict]:
    """Measure what a suite's gates are about, and judge them by these rows."""
    own = [gate for gate in gates if gate.suite == suite]
    if not own:
        raise UsageError(f"no gate belongs to the suite {suite!r}")
    if suite == "micro":
        return _three_passes(session, own, out)
    require_passes(out, session.kernel_sha256, session.contract)
    rows = _measure(session, own, 0)
    return judge(own, Folder(out, rows))


def _measure(session: Experiment, gates: Sequence[Gate], first_turn: int) -> list[Row]:
    scenarios = {gate.scenario for gate in gates}
    places = [p for p in session.contract.places() if p.scenario.name in scenarios]
    if not places:
        raise UsageError(f"{session.contract.name} has no scenario of {', '.join(scenarios)}")
    return [row for place in places for row in session.run_place(place, first_turn)]


def _three_passes(session: Experiment, gates: Sequence[Gate], out: Path) -> list[Verdict]:
    """Each pass must hold every floor with its own turns; all of them together are recorded."""
    rows: list[Row] = []
    first = 0
    for number in range(PASSES):
        own = _measure(session, gates, first)
        first += max(row.turn for row in own) - first + 1
        rows += own
        found = judge(gates, Folder(out, own, least_pairs=1))
        is_ok = all(verdict.passed for verdict in found)
        session.note(f"micro pass {number + 1} of {PASSES}: {'passed' if is_ok else 'FAILED'}")
        for verdict in found:
            session.note(f"  {verdict.name}: {verdict.value} ({verdict.reason or 'passed'})")
        _record_pass(session, out, found, is_ok)
    return judge(gates, Folder(out, rows))


def _record_pass(session: Experiment, out: Path, found: Sequence[Verdict], is_ok: bool) -> None:
    new = {
        "ok": is_ok,
        "contract": session.contract.digest,
        "kernel_sha256": session.kernel_sha256,
        "session": session.started,
        "gates": [asdict(verdict) for verdict in found],
    }
    write_json(out / TOKEN, {"passes": [*_passes(out), new], "provenance": dict(session.facts)})


def _passes(out: Path) -> list[dict[str, Any]]:
    return list(read_json(out / TOKEN)["passes"]) if (out / TOKEN).is_file() else []


def require_passes(out: Path, kernel_sha256: str, contract: Contract | None = None) -> None:
    """Refuse unless the last three micro passes, of these kernels and this contract, held."""
    held = [
        entry["ok"]
        and entry["kernel_sha256"] == kernel_sha256
        and (contract is None or entry["contract"] == contract.digest)
        for entry in _passes(out)[-PASSES:]
    ]
    if len(held) < PASSES or not all(held):
        raise UsageError(
            f"this needs {PASSES} micro passes in a row with these kernels"
            f"{' and this contract' if contract else ''}; {out / TOKEN} does not show them: run"
            " `aerie gates run micro` first"
        )


def keep_columns(root: Path, staying: Container[str]) -> list[Path]:
    """Write a file for every column that figures were measured with and that does not stay.

    `staying` are the sources of the matrix that is about to be written.
    """
    path = root / "reports" / MATRIX
    if not path.is_file() or not (root / "evidence/gates").is_dir():
        return []
    folder = Folder(root / "reports", ages=read_ages(root))
    gates = [gate for gate in read_gates(root / "evidence/gates") if gate.parity]
    needed = {(gate.parity, name) for gate in gates for name in _names(gate, folder)}
    matrix = read_json(path)
    kept = []
    for column in matrix["columns"]:
        sources, device = column["sources_sha256"], column["device"]
        if (column["backend"], sources) in needed and sources not in staying:
            kept.append(path.parent / EARLIER.replace("*", f"{sources[:8]}_{device}"))
            write_json(kept[-1], {**matrix, "columns": [column]})
    return kept


def _names(gate: Gate, folder: Folder) -> set[str]:
    try:
        return {name for names in kernel_names(gate, folder) for name in names}
    except Refused:
        return set()  # without figures there is nothing to prove
