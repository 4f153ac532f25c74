"""README's table: which run is shown, beside which rival, and what marks an older one."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import UNTOLD, WHOLE, Ages
from aerie.bench.report.front import render
from aerie.bench.report.pages import without_ages

COMMIT = "0123456789abcdef"
PAGE = "# a\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nb\n"


def served(run: str, lane: str, speed: float, group: int = 0) -> dict[str, Any]:
    return {
        "kind": "served",
        "lane": lane,
        "run": run,
        "point": "greedy 8",
        "group": group,
        "load": {"clients": 8},
        "tokens_per_second": speed,
        "server": {"version": "0.26.0", "numerics": "exact"},
        "made": {"commit": COMMIT, "source_sha256": "0" * 64, "date": "2026-11-16T11:54:17"},
    }


def table(root: Path, rows: list[dict[str, Any]], ages: Ages = UNTOLD) -> str:
    (root / "README.md").write_text(PAGE, encoding="utf-8")
    (root / "reports/peers").mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "reports/peers/served_a.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    return render(root, ages)


RACE = [
    served("2", "vllm chain5", 50.0),
    served("2", "vllm chain7", 150.0),
    served("2", "aerie planner", 300.0),
]


def test_the_last_run_with_both_is_shown_beside_the_fastest_rival(tmp_path: Path) -> None:
    earlier = [served("1", "vllm chain7", 1.0), served("1", "aerie planner", 1.0)]
    alone = [served("3", "aerie planner", 900.0)]
    page = table(tmp_path, [*earlier, *RACE, *alone])
    row = "| HTTP, 8 clients, 1K prompts |  | 150 (vLLM 0.26.0, 7 drafted) | 300 | 2.00 | exact |"
    assert row in page and page.count("| HTTP") == 1
    assert page.startswith("# a\n") and page.endswith("\nb\n") and "old" not in page


def test_turns_are_compared_one_by_one(tmp_path: Path) -> None:
    second = [served("2", "vllm chain7", 100.0, 1), served("2", "aerie planner", 400.0, 1)]
    third = [served("2", "vllm chain7", 100.0, 2), served("2", "aerie planner", 300.0, 2)]
    page = table(tmp_path, [*RACE, *second, *third])
    assert "| 100 (vLLM 0.26.0, 7 drafted) | 300 | 3.00 |" in page
    assert "Turns of the run over HTTP: 3." in page


def test_an_older_row_is_marked_and_the_mark_is_an_age(tmp_path: Path) -> None:
    then = {COMMIT: {WHOLE: "0" * 64, "engine": "a"}}
    fresh = table(tmp_path, RACE, Ages({"engine": "a"}, then))
    older = table(tmp_path, RACE, Ages({"engine": "b"}, then))
    assert "`0123456` |" in fresh and "`0123456` (stale) |" in older
    assert without_ages(older) == without_ages(fresh) == fresh


def test_what_was_not_measured_is_not_shown(tmp_path: Path) -> None:
    assert "| HTTP" not in table(tmp_path, [served("1", "aerie planner", 1.0)])
