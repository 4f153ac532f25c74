"""The checks beside the matrix hold on a CPU, and a suite of gates counts its passes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.contract import Contract, Place, read_contract
from aerie.bench.experiment import Experiment
from aerie.bench.gates.data import Gate
from aerie.bench.gates.run import TOKEN, run_suite
from aerie.bench.gpu_checks import CHECKS, proportion
from aerie.bench.rows import Row
from aerie.errors import AerieError
from tests.unit.bench.test_gates import SHA, made_rows, write


def test_tail_and_slots_hold_on_a_cpu(tmp_path: Path) -> None:
    contract = read_contract(Path("evidence/contracts/rehearsal_cpu.toml"))
    session = Experiment(contract, tmp_path / "raw.csv", SHA, lambda text: None)
    tail = CHECKS["tail"](session)
    assert tail["ok"] and tail["lengths"] == [40] and tail["same_as_plain"] == {"spec-3": True}
    slots = CHECKS["slots"](session)
    assert slots["ok"]
    assert {row["active"] for row in slots["rounds"]} == {1, 2, 3, 4}
    by_active = {row["active"]: row["draft_rows"] for row in slots["rounds"]}
    assert all(by_active[n] == n * by_active[1] for n in by_active)


def slots_of_rounds(active: list[int], slots: list[int]) -> list[dict[str, Any]]:
    return [
        {"round": n, "active": a, "slots": s, "draft_rows": 16 * s, "attention_tokens": 100 * a}
        for n, (a, s) in enumerate(zip(active, slots, strict=True))
    ]


def test_one_round_after_an_end_may_hold_its_row_and_no_later_one() -> None:
    active = [4, 3, 3, 2, 2, 2, 1, 1]
    found = proportion(slots_of_rounds(active, [4, 3, 3, 3, 2, 2, 2, 1]))
    assert found["ok"] and found["rounds_launched_before_an_end_was_known"] == [3, 6]
    assert not proportion(slots_of_rounds(active, [4, 3, 3, 3, 3, 2, 2, 1]))["ok"]
    assert not proportion(slots_of_rounds(active, [4] * 8))["ok"]


@dataclass
class Recorded:
    """Stands in for a session: its points answer with made rows."""

    contract: Contract
    speed: float = 1.0
    kernel_sha256: str = SHA
    started: str = "s"
    facts: dict[str, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Never read."""

    def run_place(self, place: Place, first_turn: int = 0) -> list[Row]:
        """Three turns of a point."""
        scenario, batch, context = place.key
        rows = [row for row in made_rows(9) if first_turn <= row.turn < first_turn + 3]
        moved = [replace(r, scenario=scenario, batch=batch, context=context) for r in rows]
        return [
            replace(row, seconds=row.seconds / self.speed) if row.policy == "spec-3" else row
            for row in moved
        ]


def gates() -> list[Gate]:
    own = {"check": "ratio", "file": "x.csv", "policy": "spec-3", "parity": "triton"}
    micro = Gate("m", floor=2.0, suite="micro", scenario="single", **own)  # type: ignore[arg-type]
    return [micro, replace(micro, name="f", suite="full", scenario="batch")]


def test_three_passes_open_the_full_run(tmp_path: Path) -> None:
    write(tmp_path, made_rows())
    contract = read_contract(Path("evidence/contracts/rehearsal_cpu.toml"))
    session: Any = Recorded(contract)
    with pytest.raises(AerieError, match="micro"):
        run_suite(session, gates(), "full", tmp_path)
    (verdict,) = run_suite(session, gates(), "micro", tmp_path)
    assert verdict.passed and verdict.value == pytest.approx(2.2)
    passes = json.loads((tmp_path / TOKEN).read_text(encoding="utf-8"))["passes"]
    assert [entry["ok"] for entry in passes] == [True] * 3
    (verdict,) = run_suite(session, gates(), "full", tmp_path)
    assert verdict.name == "f" and "3 interleaved pairs" in verdict.reason
    slow: Any = Recorded(contract, speed=0.8)
    (verdict,) = run_suite(slow, gates(), "micro", tmp_path)
    assert not verdict.passed
    with pytest.raises(AerieError, match="micro"):
        run_suite(session, gates(), "full", tmp_path)


def test_another_contract_needs_the_same_engine(tmp_path: Path) -> None:
    contract = read_contract(Path("evidence/contracts/rehearsal_cpu.toml"))
    session = Experiment(contract, tmp_path / "raw.csv", SHA, lambda text: None)
    session.adopt(replace(contract, name="again"))
    assert session.contract.name == session.bed.contract.name == "again"
    other = replace(contract, memory=replace(contract.memory, kv_tokens=4096))
    with pytest.raises(AerieError, match="another engine"):
        session.adopt(other)
