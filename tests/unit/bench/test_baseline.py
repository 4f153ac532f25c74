"""A contract is held against the rows: what is missing, what is thin, what varies unmarked."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.contract import Contract, Scenario, read_contract
from aerie.bench.gpu import Asked, run_asked, summary_of, summary_page
from aerie.bench.provenance_machine import compilers, under_load
from aerie.bench.report.baseline import BASELINE, hold
from aerie.bench.report.checks import Evidence, judge
from aerie.bench.report.rows import Check
from aerie.bench.report.rows import Row as Line
from aerie.bench.rows import Row, append_rows
from aerie.bench.summary import point
from aerie.errors import UsageError
from tests.unit.bench.test_gates import SHA, made_rows

H200 = Path("evidence/contracts/h200.toml")
PLANNER = Path("evidence/contracts/h200_planner.toml")
POLICIES = ("plain", "spec-3")
SCENARIOS = (
    Scenario("full-32k", (1,), (32768,), POLICIES, 64),
    Scenario("batch", (4, 8), (1024,), POLICIES, 64),
)


@pytest.fixture
def contract() -> Contract:
    return replace(read_contract(H200), scenarios=SCENARIOS)


def written(root: Path, contract: Contract, rows: list[Row]) -> Path:
    (root / BASELINE).unlink(missing_ok=True)
    append_rows(root / BASELINE, [replace(row, contract=contract.digest) for row in rows])
    return root


def test_a_scenario_without_rows_is_named(tmp_path: Path, contract: Contract) -> None:
    held = hold(written(tmp_path, contract, made_rows()), contract)
    assert held.missing == ("batch",) and held.faults == [] and not held.has_other_terms
    elsewhere = [replace(row, scenario="batch", batch=4, context=1024) for row in made_rows()]
    plain = [row for row in elsewhere if row.policy == "plain"]
    held = hold(written(tmp_path, contract, made_rows() + plain), contract)
    assert held.missing == ("batch 4x1024 spec-3", "batch 8x1024")


def test_spread_and_runs_are_told(tmp_path: Path, contract: Contract) -> None:
    held = hold(written(tmp_path, contract, made_rows()), contract)
    assert "2 points, 0 vary by more than 5%, 0 continue the same prompts" in held.note
    rows = made_rows()
    restless = [
        replace(row, seconds=row.seconds * (1 + 0.2 * (row.turn % 2))) if i % 2 else row
        for i, row in enumerate(rows)
    ]
    held = hold(written(tmp_path, contract, restless), contract)
    assert [one.found["stability"] for one in held.loose] == ["unstable"] and held.faults == []
    assert "1 vary by more than 5% and say so (1 unstable)" in held.note
    (loose,) = held.loose
    stable = replace(loose, found={**loose.found, "stability": "stable"})
    unmarked = replace(held, measured=(stable,))
    assert unmarked.faults == ["full-32k 1x32768 spec-3 varies unmarked"]
    few = hold(written(tmp_path, contract, made_rows(4)), contract)
    assert few.faults[0] == "full-32k 1x32768 plain has 4 runs"
    other = hold(tmp_path, replace(contract, name="another"))
    assert other.has_other_terms


def test_a_row_of_the_scorecard_is_open_while_a_scenario_is_missing(tmp_path: Path) -> None:
    text = Path("evidence/contracts/h200.toml").read_text(encoding="utf-8")
    head, *scenarios = text.split("[[scenarios]]")
    two = [own for own in scenarios if 'name = "full-32k"\n' in own or 'name = "batch"' in own]
    path = tmp_path / "contract.toml"
    path.write_text("[[scenarios]]".join((head, *two)), encoding="utf-8")
    written(tmp_path, read_contract(path), made_rows())
    judged = judge(
        Line("1", "all", (Check("contract", path.name),)), Evidence(tmp_path, (), (), {})
    )
    assert judged.status == "open"
    assert judged.notes[-1] == "contract.toml: no rows of batch"
    path.write_text("[[scenarios]]".join((head, two[0])), encoding="utf-8")
    written(tmp_path, read_contract(path), made_rows())
    judged = judge(
        Line("1", "all", (Check("contract", path.name),)), Evidence(tmp_path, (), (), {})
    )
    assert judged.status == "pass"


def test_what_a_point_says_besides_speed() -> None:
    """First tokens of all prompts, seats that ended, and energy over all turns together."""
    several = {"ttft_ms": "10.00;30.00;20.00", "batch": 4, "active_mean": 3.5, "joules": "10.0"}
    rows = [replace(row, **several) for row in made_rows()]
    plain = point(rows, "plain")
    assert plain["ttft_ms"] == {"p50": 20.0, "p99": 30.0}
    assert plain["disabled_finished"] == 9 * 50  # turns, of a hundred rounds each
    assert plain["joules_per_token"] == pytest.approx(0.1)
    assert point([replace(row, seconds=0.05) for row in rows], "plain")["joules_per_token"] is None
    once = point([replace(row, ttft_ms="12.50") for row in rows], "plain")
    assert once["ttft_ms"] == {"p50": 12.5, "p99": None}
    shown = summary_page(summary_of(rows), rows)
    assert "| 20 / 30 |" in shown and "| 450 |" in shown


@pytest.mark.parametrize("asked", [{"what": ("matrix",)}, {"what": ("tail",), "then": (PLANNER,)}])
def test_a_matrix_waits_for_three_micro_passes(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Before anything is loaded: there is no GPU here."""
    with pytest.raises(UsageError, match="3 micro passes in a row with these kernels"):
        run_asked(Asked(H200, tmp_path, SHA, **asked), lambda text: None)


def test_the_manifest_names_compilers() -> None:
    found = compilers()
    assert "GCC" in found["compiler of torch"]
    if importlib.util.find_spec("triton") is not None:
        assert "release" in found["ptxas"]
    assert under_load("cpu") == {}
