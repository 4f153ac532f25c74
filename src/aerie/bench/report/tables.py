"""Every table that is made from raw records: which file, from what, by which function."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench import gpu as gpu_report
from aerie.bench.contract import read_contract
from aerie.bench.gates.data import HISTORY
from aerie.bench.record import as_lines, read_json, read_once
from aerie.bench.report.baseline import BASELINE
from aerie.bench.report.origin import render_history
from aerie.bench.rows import read_rows

CONTRACT = "evidence/contracts/h200.toml"
SUMMARY = "reports/h200_baseline_summary"


@dataclass(frozen=True)
class Table:
    """A file that `render` writes anew from `raw` alone; patterns are allowed in `raw`."""

    path: str
    raw: tuple[str, ...]
    render: Callable[[Path], str]


def rebuild(root: Path, tables: Iterable[Table]) -> dict[str, str]:
    """The text of every table whose raw data is there."""
    return {
        table.path: table.render(root)
        for table in tables
        if all(any(root.glob(pattern)) for pattern in table.raw)
    }


def _by_script(root: Path, name: str, record: Any) -> str:
    """A page by the script that measured it: what measures also knows how its page is written."""
    script = runpy.run_path(str(root / "scripts" / f"{name}.py"), run_name=name)
    return str(script["render"](record))


def _precision(root: Path) -> str:
    return _by_script(root, "precision_study", read_json(root / "reports/precision.json"))


def _end_to_end(root: Path) -> str:
    files = sorted((root / "reports").glob("fpga_backend_e2e_*.json"))
    return _by_script(root, "fpga_backend_e2e", [read_json(path) for path in files])


def _draft_vocabulary(root: Path) -> str:
    from aerie.models.draft_vocabulary_report import ReportSettings, VocabularyRow, as_markdown

    values = read_json(root / "reports/draft_vocabulary.json")
    rows = [VocabularyRow(**row) for row in values["rows"]]
    origin = values["provenance"]
    return as_markdown(rows, ReportSettings(**values["settings"])) + (
        f"\nMeasured on {values['prompts']} prompts, {origin['device']}, commit"
        f" `{origin['commit']}`, torch {origin['torch']}, {origin['date']}.\n"
    )


@read_once
def _summaries(raw: Path) -> tuple[str, str]:
    """Of the rows of a device, for programs and for people."""
    rows = read_rows(raw)
    found = gpu_report.summary_of(rows)
    return as_lines(found), gpu_report.summary_page(found, rows)


TABLES = (
    Table(HISTORY, ("evidence/scorecard/artifacts.toml",), render_history),
    Table(
        "reports/benchmark_contract.md",
        (CONTRACT,),
        lambda root: gpu_report.contract_page(read_contract(root / CONTRACT), CONTRACT),
    ),
    Table(SUMMARY + ".json", (BASELINE,), lambda root: _summaries(root / BASELINE)[0]),
    Table(SUMMARY + ".md", (BASELINE,), lambda root: _summaries(root / BASELINE)[1]),
    Table("reports/precision.md", ("reports/precision.json",), _precision),
    Table("reports/fpga_backend_e2e.md", ("reports/fpga_backend_e2e_*.json",), _end_to_end),
    Table("reports/draft_vocabulary.md", ("reports/draft_vocabulary.json",), _draft_vocabulary),
)
