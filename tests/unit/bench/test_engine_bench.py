"""`aerie bench engine`, small: every policy on one engine, same texts, a whole report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from aerie.bench.engine import POLICIES, Terms, choose_prompts, run_session
from aerie.bench.record import interval, open_rows
from aerie.bench.report.measured import render_engine
from tests.unit.engine.cores import CHEAP


def test_a_small_session_reports_every_policy(tmp_path: Path) -> None:
    terms = Terms(batches=(2,), contexts=(32,), tokens=16, least=8, repeats=1)
    found = run_session(terms, CHEAP, False, lambda text: None)
    points = found.record["points"]
    assert [point["policy"] for point in points] == list(POLICIES)
    assert all(point["tokens_per_second"] > 0 for point in points)
    (place,) = found.record["planner"]
    assert place["texts_different"] == 0
    assert place["oracle"]["tokens_per_second"] > 0
    assert place["regret"] < 1
    assert "regret" in [column.header for column in found.table().columns]
    found.write(tmp_path, "engine_bench_cpu")
    written = json.loads((tmp_path / "engine_bench_cpu.json").read_text())
    assert written["contract"]["hash"] == terms.contract().digest
    assert {"ok", "min_planner_ratio", "regret", "device"} <= set(written)
    with open_rows(tmp_path / "raw/engine_bench_cpu_runs.csv.xz", "rt") as stream:
        runs = list(csv.DictReader(stream))
    assert [run["policy"] for run in runs] == list(POLICIES)
    assert all(run["commit"] and float(run["seconds"]) > 0 for run in runs)
    assert (tmp_path / "engine_bench_cpu.png").stat().st_size > 10_000
    # What the report makes of it, from the record alone.
    path = tmp_path / "engine_bench_cpu.json"
    assert "| 2 | 32 |" in render_engine(path, path)


def test_long_prompts_are_cuts_of_few_documents() -> None:
    prompts = choose_prompts(4096, lambda text: list(text.encode()[:9000]))(4, 0)
    assert [len(prompt) for prompt in prompts] == [4096, 4096, 4032, 4032]
    assert prompts[0][:4032] == prompts[2]


def test_an_interval_holds_its_median() -> None:
    found = interval([1.0, 1.1, 0.9, 1.3, 1.2, 1.05, 0.95, 1.15, 1.0])
    assert found.low <= found.median <= found.high
    assert found.median == 1.05
