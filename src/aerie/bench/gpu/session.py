"""`aerie bench gpu`: the matrix and the checks beside it, and the one record they end in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.bench.gates.gate import Verdict, read_gates
from aerie.bench.gates.run import run_suite
from aerie.bench.gpu.checks import CHECKS
from aerie.bench.gpu.contract import read_contract
from aerie.bench.gpu.report import label, raw_path, write_contract, write_summary
from aerie.bench.gpu.rows import read_rows
from aerie.bench.gpu.run import GpuSession, Note
from aerie.bench.record import Origin, write_json
from aerie.errors import UnknownNameError

MATRIX, SUITES = "matrix", ("micro", "full")
WHAT = (*SUITES, *CHECKS, MATRIX)


@dataclass(frozen=True)
class Asked:
    """What a call of the command measures."""

    contract: Path
    out: Path
    kernel_sha256: str
    what: tuple[str, ...] = (MATRIX,)
    points: tuple[str, ...] = ()  # of the contract's matrix
    then: tuple[Path, ...] = ()  # contracts whose whole matrix follows on the same engine
    gates: Path = Path("gates")

    def __post_init__(self) -> None:
        for name in self.what:
            if name not in WHAT:
                raise UnknownNameError("thing to measure", name, WHAT)


def open_session(asked: Asked, note: Note) -> GpuSession:
    """The pair in memory, the engine over it; the contract's pages are written at once."""
    contract = read_contract(asked.contract)
    contract.places(asked.points)  # unknown names are refused before anything is loaded
    device = contract.model.device
    origin = Origin.of({"contract": contract.digest}, device)
    if device.startswith("cuda"):
        write_contract(asked.out, contract, str(asked.contract), origin)
    raw = raw_path(asked.out, str(origin.facts["device"]))
    return GpuSession(contract, raw, asked.kernel_sha256, note)


def run_asked(asked: Asked, note: Note) -> dict[str, Any]:
    """Measure, in the order of `WHAT`; returns the closing record."""
    session = open_session(asked, note)
    verdicts: list[Verdict] = []
    for suite in SUITES:
        if suite in asked.what:
            verdicts += run_suite(session, read_gates(asked.gates), suite, asked.out)
    checks = run_checks(session, [name for name in CHECKS if name in asked.what], asked.out)
    if MATRIX in asked.what:
        session.run(session.contract.places(asked.points))
    for path in asked.then:
        session.adopt(read_contract(path))
        session.run(session.contract.places())
    return closing(session, asked.out, checks, verdicts)


def run_checks(session: GpuSession, names: Sequence[str], out: Path) -> dict[str, Any]:
    """The checks, each written into the device's own file as soon as it is done."""
    found: dict[str, Any] = {}
    device = str(session.facts["device"])
    for name in names:
        found[name] = CHECKS[name](session)
        session.note(f"{name}: {'ok' if found[name]['ok'] else 'NOT OK'}")
        record = {
            "check": name,
            **found[name],
            "contract": session.contract.digest,
            "dtype": session.contract.model.dtype,
            "geometry": session.contract.model.geometry,
            "kind": "measured",
            "kernel_sha256": session.kernel_sha256,
            "provenance": {**session.facts, "contract": session.contract.digest},
        }
        write_json(out / f"{label(device)}_check_{name}.json", record)
    return found


def closing(
    session: GpuSession, out: Path, checks: dict[str, Any], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """One JSON object: the points of everything recorded so far, checks and gates of this call."""
    device = str(session.facts["device"])
    own = read_rows(session.raw)
    found = write_summary(out, device) if own else {"points": [], "min_planner_ratio": None}
    return {
        "ok": all(check["ok"] for check in checks.values()) and all(v.passed for v in verdicts),
        "contract": session.contract.digest,
        "device": device,
        **found,
        "checks": {name: check["ok"] for name, check in checks.items()},
        "gates": [asdict(verdict) for verdict in verdicts],
    }
