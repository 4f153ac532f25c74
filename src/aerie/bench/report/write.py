"""`aerie report`: every table and picture from raw data, then the scorecard and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import UNTOLD, Ages
from aerie.bench.gates.gate import Verdict
from aerie.bench.plots import PLOTS
from aerie.bench.report.checks import FAIL, STALE, STATUSES, Evidence, Judged, Parity, judge
from aerie.bench.report.pages import (
    MANIFEST,
    REVIEW,
    SCORECARD,
    evidence_files,
    kill_holds,
    render_manifest,
    render_scorecard,
    unsigned_files,
    without_ages,
)
from aerie.bench.report.rows import read_artifacts, read_results, read_sections
from aerie.bench.report.tables import TABLES, Table, rebuild

# Tables may be made of tables (a traffic table of a profile's), so making them is repeated until
# nothing changes; this many passes are more than any chain there is.
PASSES = 4
REPORTS = "reports"


@dataclass(frozen=True)
class Report:
    """What the checkout's evidence says."""

    written: tuple[str, ...]  # files that were out of date
    aged: tuple[str, ...]  # of these, such as only do not tell yet what was changed since
    judged: tuple[Judged, ...]
    unsigned: tuple[str, ...]

    @property
    def failed(self) -> list[Judged]:
        """Rows that fail."""
        return [one for one in self.judged if one.status == FAIL]

    @property
    def needs_review(self) -> list[str]:
        """Kill criteria that hold."""
        return [one.row.id for one in kill_holds(self.judged)]

    def counts(self) -> dict[str, int]:
        """Rows by status."""
        found = Counter(one.status for one in self.judged)
        return {status: found[status] for status in STATUSES}

    def payload(self) -> dict[str, Any]:
        """Counts, failures and what is missing, machine readable."""
        return {
            "scorecard": self.counts(),
            "failed": [{"row": one.row.id, "notes": list(one.notes)} for one in self.failed],
            "stale": [
                {"row": one.row.id, "changed": list(one.changed)}
                for one in self.judged
                if one.status == STALE
            ],
            "without_provenance": list(self.unsigned),
            "kill_criteria": self.needs_review,
            "out_of_date": list(self.written),
        }


@dataclass(frozen=True)
class Judges:
    """What other parts of the program say about the evidence, asked by the command."""

    gates: Sequence[Verdict]
    parity: Mapping[str, Parity]  # by backend
    tables: Sequence[Table] = ()  # pages that need them, or packages this one does not stand on
    ages: Ages = UNTOLD


def make(root: Path, judges: Judges, writes: bool) -> Report:
    """Rebuild everything; `writes` decides whether stale files are replaced or only named."""
    fresh: dict[str, bytes] = {}
    tables = (*TABLES, *judges.tables)
    for _ in range(PASSES):
        made = {path: text.encode() for path, text in rebuild(root, tables).items()}
        changed = {path for path in made if made[path] != _bytes(root / path)}
        fresh |= {path: made[path] for path in changed}
        if not (changed and writes):
            break
        _write(root, {path: made[path] for path in changed})
    # Pictures are of the tables above, so drawn after them.
    plots = [plot for plot in PLOTS if plot.is_stale(root / REPORTS)]
    for plot in plots if writes else ():
        plot.redraw(root / REPORTS)
    artifacts = read_artifacts(root)
    evidence = Evidence(
        root, artifacts, judges.gates, judges.parity, judges.ages, read_results(root)
    )
    judged = [
        (section, [judge(row, evidence) for row in section.rows]) for section in read_sections(root)
    ]
    names = evidence_files(root)
    unsigned = unsigned_files(evidence, names)
    pages = {
        SCORECARD: render_scorecard(judged, unsigned).encode(),
        MANIFEST: render_manifest(evidence, names, fresh).encode(),
    }
    fresh |= {path: text for path, text in pages.items() if text != _bytes(root / path)}
    aged = sorted(path for path, text in fresh.items() if _is_only_aged(root / path, text))
    if writes:
        _write(root, {path: text for path, text in pages.items() if path in fresh})
    every = tuple(one for _, rows in judged for one in rows)
    drawn = (f"{REPORTS}/{plot.name}" for plot in plots)
    return Report((*drawn, *sorted(fresh)), tuple(aged), every, tuple(unsigned))


def _is_only_aged(path: Path, text: bytes) -> bool:
    """Whether a page lacks nothing but that something it stands on has changed since."""
    is_told = path.suffix == ".md" and path.is_file()
    return is_told and without_ages(text.decode()) == without_ages(path.read_text("utf-8"))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _write(root: Path, pages: Mapping[str, bytes]) -> None:
    for path, data in pages.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def missing_review(root: Path, report: Report) -> str:
    """What to do first when a kill criterion holds and the design was not reviewed."""
    if report.needs_review and not (root / REVIEW).exists():
        return f"kill criteria hold ({', '.join(report.needs_review)}): write {REVIEW} first"
    return ""
