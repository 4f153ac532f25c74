"""Gates recompute from raw rows, refuse what cannot be traced, and fail below their floors."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.contract import read_contract
from aerie.bench.gates.data import WHOLE, Ages, Folder, Gate, read_ages
from aerie.bench.gates.gate import judge, read_gates
from aerie.bench.gates.run import TOKEN, keep_columns, require_passes
from aerie.bench.record import open_rows
from aerie.bench.rows import Row, append_rows, read_rows
from aerie.errors import AerieError

RAW, SHA = "h200_baseline_raw.csv.xz", "ab" * 32
NUMBERS = {
    "batch": 1, "context": 32768, "turn": 0, "new_tokens": 1024, "tokens": 100, "rounds": 100,
    "drafts": 0, "draft_tokens": 0, "accepted": 0, "emissions": 100, "emissions_ge3": 0,
    "itl_p50_ms": 5.0, "itl_p99_ms": 6.0, "gap_p50_ms": 5.0, "gap_p99_ms": 6.0, "active_mean": 1.0,
    "active_least": 1, "active_most": 1, "repeated_8gram_share": 0.1, "ceiling_ms": 4.5,
    "copy_gbps": 4200.0, "peak_memory": 1, "tuned_hits": 5, "tuned_total": 5, "seconds": 0.55,
}  # fmt: skip
TEXTS = {
    "contract": "c0ffee", "commit": "0123abc", "source_sha256": SHA, "kernel_sha256": SHA,
    "device": "NVIDIA H200", "driver": "580", "torch": "2.11", "triton": "3.6", "sm_mhz": "1980",
    "memory_mhz": "3201", "date": "2026-11-15", "session": "s", "scenario": "full-32k",
    "policy": "plain", "prompts": "a", "text_sha256": "t", "joules": "", "ttft_ms": "",
    "costs_sha256": "",
}  # fmt: skip
RATIO = Gate("spec-3 over plain", "ratio", RAW, 2.0, policy="spec-3", parity="triton")


def made_rows(n_turns: int = 9) -> list[Row]:
    """Plain at 0.82 of its ceiling; speculation 2.2 times as fast."""
    plain = Row(**NUMBERS, **TEXTS)  # type: ignore[arg-type]
    found = []
    for turn in range(n_turns):
        own = replace(plain, turn=turn, prompts=f"p{turn}", text_sha256=f"t{turn}")
        found += [
            own,
            replace(own, policy="spec-3", seconds=0.25, rounds=30, drafts=30, accepted=70),
        ]
    return found


def write(root: Path, rows: list[Row], matrix: dict[str, Any] | None = None) -> Folder:
    (root / RAW).unlink(missing_ok=True)
    append_rows(root / RAW, rows)
    column = {"backend": "triton", "sources_sha256": SHA, "failed": [], "cells": []}
    column |= {"cells": [{"cases": 7, "passed": 7}]}
    record = {"columns": [column | (matrix or {})]}
    (root / "p0_parity_matrix.json").write_text(json.dumps(record), encoding="utf-8")
    return Folder(root)


def test_a_ratio_passes_from_raw_rows(tmp_path: Path) -> None:
    (verdict,) = judge([RATIO], write(tmp_path, made_rows()))
    assert verdict.passed and verdict.value == pytest.approx(2.2) and not verdict.reason
    assert read_rows(tmp_path / RAW) == made_rows()


def test_a_number_edited_below_its_gate_fails(tmp_path: Path) -> None:
    folder = write(tmp_path, made_rows())
    path = tmp_path / RAW
    with open_rows(path, "rt") as stream:
        text = stream.read()
    with open_rows(path, "wt") as stream:
        stream.write(text.replace(",0.25,", ",0.31,"))
    (verdict,) = judge([RATIO], folder)
    assert not verdict.passed and "not at least 2" in verdict.reason


@pytest.mark.parametrize(
    ("column", "value"),
    [("commit", "unknown"), ("commit", ""), ("source_sha256", "1"), ("device", "None")],
)
def test_rows_without_provenance_are_refused(tmp_path: Path, column: str, value: str) -> None:
    rows = made_rows()
    rows[3] = replace(rows[3], **{column: value})  # type: ignore[arg-type]
    (verdict,) = judge([RATIO], write(tmp_path, rows))
    assert not verdict.passed and "no provenance" in verdict.reason and verdict.value is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sources_sha256": "cd" * 32}, "other kernel sources"),
        ({"cells": [{"cases": 7, "passed": 6}]}, "6 of 7"),
        ({"backend": "hls"}, "no column of triton"),
    ],
)
def test_a_speed_needs_the_parity_of_its_own_kernels(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    (verdict,) = judge([RATIO], write(tmp_path, made_rows(), change))
    assert not verdict.passed and reason in verdict.reason


THEN = {WHOLE: SHA, "attention": "a", "kernels/triton_gpu": "t", "kernels/pytorch": "p"}
AGES = Ages({**THEN, "attention": "b"}, {"0123abc" + "0" * 33: THEN})


def test_kernels_go_by_the_hash_of_their_commit_as_well(tmp_path: Path) -> None:
    """Rows carry the hash of their day; a matrix made later knows the sources by another."""
    known = AGES.backend_at("0123abc", "triton")
    folder = write(tmp_path, made_rows(), {"sources_sha256": known})
    assert not judge([RATIO], folder)[0].passed
    assert judge([RATIO], replace(folder, ages=AGES))[0].passed


def test_a_figure_of_older_sources_passes_and_says_which(tmp_path: Path) -> None:
    folder = write(tmp_path, made_rows())
    assert judge([RATIO], folder)[0].changed == ()
    verdict, attention = judge(
        [RATIO, replace(RATIO, sources="gpu kernels")], replace(folder, ages=AGES)
    )
    assert verdict.passed and verdict.changed == ("attention",)
    assert attention.passed and attention.changed == ()
    rows = [replace(row, source_sha256="cd" * 32) for row in made_rows()]
    (dirty,) = judge([RATIO], replace(write(tmp_path, rows), ages=AGES))
    assert dirty.passed and dirty.changed == ("sources were not those of 0123abc",)


def test_columns_that_figures_need_stay_when_the_matrix_is_made_again(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    folder = write(reports, made_rows(), {"device": "cpu"})
    shutil.copytree("evidence/gates", tmp_path / "evidence/gates")
    (tmp_path / "evidence/gates/gpu.toml").write_text(
        f'[[gates]]\nname = "a"\ncheck = "ratio"\nfile = "{RAW}"\nfloor = 2.0\n'
        'policy = "spec-3"\nparity = "triton"\n',
        encoding="utf-8",
    )
    assert keep_columns(tmp_path, {SHA}) == []  # the new matrix has them, too
    (kept,) = keep_columns(tmp_path, {"cd" * 32})
    matrix = json.loads((reports / "p0_parity_matrix.json").read_text(encoding="utf-8"))
    matrix["columns"][0]["sources_sha256"] = "cd" * 32
    (reports / "p0_parity_matrix.json").write_text(json.dumps(matrix), encoding="utf-8")
    assert judge([RATIO], folder)[0].passed
    kept.unlink()
    assert not judge([RATIO], folder)[0].passed


def test_a_slow_baseline_and_few_pairs_do_not_count(tmp_path: Path) -> None:
    slow = [replace(row, ceiling_ms=3.0) for row in made_rows()]
    (verdict,) = judge([RATIO], write(tmp_path, slow))
    assert not verdict.passed and "of its ceiling" in verdict.reason
    (verdict,) = judge([RATIO], write(tmp_path, made_rows(8)))
    assert not verdict.passed and "8 interleaved pairs" in verdict.reason


def test_the_last_session_of_a_point_counts(tmp_path: Path) -> None:
    later = [replace(row, session="t", seconds=row.seconds * 1.0) for row in made_rows()]
    worse = [replace(row, seconds=0.5) if row.policy == "spec-3" else row for row in later]
    (verdict,) = judge([RATIO], write(tmp_path, made_rows() + worse))
    assert not verdict.passed and verdict.value == pytest.approx(1.1)


def test_other_figures_come_from_the_same_rows(tmp_path: Path) -> None:
    folder = write(tmp_path, made_rows())
    gates = [
        Gate("acceptance", "acceptance", RAW, 3.0, policy="spec-3"),
        Gate("fresh", "fresh_acceptance", RAW, 3.0, policy="spec-3"),
        Gate("texts", "texts", RAW, 8, policy="spec-3"),
        Gate("repeatable", "repeatable", RAW, 1, policy="spec-3"),
        Gate("tuned", "tuned", RAW, 1.0, policy="spec-3"),
    ]
    found = judge(gates, folder)
    assert [verdict.value for verdict in found] == [pytest.approx(3.3333)] * 2 + [9, 1, 1]
    assert all(verdict.passed for verdict in found)


def test_texts_that_loop_do_not_count_as_fresh(tmp_path: Path) -> None:
    looping = [
        replace(row, repeated_8gram_share=0.21, accepted=90) if row.turn and row.drafts else row
        for row in made_rows()
    ]
    gate = Gate("fresh", "fresh_acceptance", RAW, 3.0, policy="spec-3")
    (verdict,) = judge([gate], write(tmp_path, looping))
    assert verdict.value == pytest.approx(3.3333)
    every = [replace(row, repeated_8gram_share=0.9) for row in looping]
    (verdict,) = judge([gate], write(tmp_path, every))
    assert not verdict.passed and "loops" in verdict.reason


def test_records_are_followed_by_path_and_need_provenance(tmp_path: Path) -> None:
    origin = {"commit": "0123abc", "source_sha256": SHA, "device": "d", "date": "x"}
    record = {"provenance": origin, "trees": [{"rows": 1, "ratio": 9}, {"rows": 16, "ratio": 1.4}]}
    (tmp_path / "a.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps({"trees": []}), encoding="utf-8")
    gate = Gate("g", "record", "a.json", 1.5, sense="at_most", path="trees.rows=16.ratio")
    others = [replace(gate, path="trees.rows=2.ratio"), replace(gate, file="b.json")]
    found = judge([gate, *others], Folder(tmp_path))
    assert [verdict.passed for verdict in found] == [True, False, False]
    assert found[0].value == 1.4 and "no provenance" in found[2].reason


def test_shipped_gates_are_readable_and_named_once() -> None:
    gates = read_gates(Path("evidence/gates"))
    names = [gate.name for gate in gates]
    assert len(names) == len(set(names))
    scenarios = {s.name for s in read_contract(Path("evidence/contracts/h200.toml")).scenarios}
    assert {g.scenario for g in gates if g.suite != "recorded"} <= scenarios


def test_committed_rows_hold_their_gates_and_edited_ones_do_not() -> None:
    gates = [gate for gate in read_gates(Path("evidence/gates")) if gate.suite in ("micro", "full")]
    reports = Path("reports")
    ages = read_ages(Path())
    found = judge(gates, Folder(reports, ages=ages))
    assert not [verdict.name for verdict in found if not verdict.passed]
    rows = [
        replace(row, seconds=2 * row.seconds) if row.policy == "spec-3" else row
        for row in read_rows(reports / RAW)
    ]
    assert not all(v.passed for v in judge(gates, Folder(reports, rows, ages=ages)))
    untraced = [replace(row, commit="unknown") for row in read_rows(reports / RAW)]
    assert not any(v.passed for v in judge(gates, Folder(reports, untraced, ages=ages)))


def test_an_unknown_check_is_refused(tmp_path: Path) -> None:
    text = '[[gates]]\nname = "a"\ncheck = "speed"\nfile = "x"\nfloor = 1\n'
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    with pytest.raises(AerieError, match="speed"):
        read_gates(tmp_path)


def test_a_full_run_waits_for_three_micro_passes(tmp_path: Path) -> None:
    contract = read_contract(Path("evidence/contracts/rehearsal_cpu.toml"))
    entry = {"ok": True, "contract": contract.digest, "kernel_sha256": SHA}

    def record(*passes: dict[str, Any]) -> None:
        (tmp_path / TOKEN).write_text(json.dumps({"passes": passes}), encoding="utf-8")

    with pytest.raises(AerieError, match="micro"):
        require_passes(tmp_path, SHA, contract)
    refused = [(entry, entry), (entry, {**entry, "ok": False}, entry)]
    refused.append((entry, entry, {**entry, "contract": "other"}))
    for passes in refused:
        record(*passes)
        with pytest.raises(AerieError, match="micro"):
            require_passes(tmp_path, SHA, contract)
    record({**entry, "ok": False}, entry, entry, entry)
    require_passes(tmp_path, SHA, contract)
    require_passes(tmp_path, SHA)  # what any contract of these kernels may ask
    with pytest.raises(AerieError, match="micro"):
        require_passes(tmp_path, "cd" * 32)
