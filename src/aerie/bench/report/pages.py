"""Writes the scorecard and the manifest from judged rows and the files of the checkout."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from aerie.bench.record import as_csv, line, page, table
from aerie.bench.report.checks import (
    FAIL,
    OPEN,
    PASS,
    STALE,
    STATUSES,
    Evidence,
    Judged,
)
from aerie.bench.report.origin import origin_of, short
from aerie.bench.report.rows import RESULTS, Section

SCORECARD, MANIFEST = "reports/scorecard.md", "reports/manifest.csv"
REVIEW = "reports/redesign_review.md"
# What the manifest lists: raw data, what was made of it, and the dumps that CI replays.
EVIDENCE = (
    "reports/**/*",
    "src/aerie/assets/pair/*.csv",
    "src/aerie/assets/pair/*.json",
    "tests/data/dumps/**/*.safetensors",
)
# The manifest itself, and what changes with the sources and with every run of the tests.
UNLISTED = (MANIFEST, SCORECARD, RESULTS)
# How pages say that something is older, and the counts that change with it.
OLDER = "stale: passes, measured with older sources"
STALE_ROW = f" ({STALE})"  # behind a commit
_CHANGED = re.compile(
    rf"^{OLDER} \(changed since: [^)]*\)\n\n| \(changed since: [^)]*\)| \({STALE}\)(?= \|$)", re.M
)
_STALE = re.compile(rf"\| {STALE} \|$|\*\*{STALE}\*\*(?= \()", re.M)
_COUNTS = re.compile(r"^(\| [^|]+ \|) (\d+) \| (\d+) ((\| \d+ ){3}\|)$", re.M)


_COLUMNS = ("item", "what", "status", "kind", "artifact", "commit", "command", "origin")
Sections = Sequence[tuple[Section, Sequence[Judged]]]


def render_scorecard(sections: Sections, unsigned: Sequence[str]) -> str:
    """The page; `unsigned` are files of evidence that do not say where they come from."""
    lines = []
    for section, rows in sections:
        lines += [f"## {section.title}", "", section.about, ""]
        lines += [*table(_COLUMNS, map(_cells, rows)), ""]
    if unsigned:
        lines += ["## Artifacts without provenance", ""]
        lines += ["They name no commit, so no row passes by them.", ""]
        lines += [f"- `{name}`" for name in unsigned]
    counts = [f"| | {' | '.join(STATUSES)} |", f"|---|{'---:|' * len(STATUSES)}"]
    for section, rows in sections:
        found = Counter(judged.status for judged in rows)
        counts.append(line((section.title, *(found[status] for status in STATUSES))))
    kill = _kill([judged for _, rows in sections for judged in rows])
    return page("scorecard", counts=counts, kill=kill, sections=lines).rstrip() + "\n"


def kill_holds(judged: Iterable[Judged]) -> list[Judged]:
    """Kill criteria that hold: then features stop and the design is reviewed first."""
    return [one for one in judged if one.row.kill and one.status == FAIL]


def _kill(every: Sequence[Judged]) -> list[str]:
    criteria = [judged for judged in every if judged.row.kill]
    words = {PASS: "does not hold", FAIL: "HOLDS", OPEN: "not decided"}
    words[STALE] = words[PASS]
    lines = ["Kill criteria:", ""]
    for one in criteria:
        said = f" ({'; '.join(one.notes)})" if one.notes else ""
        lines.append(f"- {one.row.id}: {words[one.status]}{said}{shown_changes(one.changed)}")
    if kill_holds(every):
        return [*lines, "", f"Features stop; `{REVIEW}` is written first."]
    return [*lines, "", f"`{REVIEW}` is written only when one holds."]


def shown_changes(changed: Sequence[str]) -> str:
    """What a page says behind a figure whose sources are not as they were."""
    return f" (changed since: {', '.join(changed)})" if changed else ""


def without_ages(page: str) -> str:
    """A page as if nothing that it stands on had changed since."""
    page = _CHANGED.sub("", _STALE.sub(lambda found: found[0].replace(STALE, PASS), page))
    return _COUNTS.sub(lambda m: f"{m[1]} {int(m[2]) + int(m[3])} | 0 {m[4]}", page)


def _cells(judged: Judged) -> list[str]:
    row = judged.row
    status = f"**{judged.status}**{shown_changes(judged.changed)}"
    status += f": {'; '.join(judged.notes)}" if judged.notes else ""
    origins = [found.origin for found in judged.findings if found.origin is not None]
    is_tested = len(origins) < len(judged.findings)  # what has no origin is a test
    commands = [*(own.command for own in origins), "make test" if is_tested else ""]
    kinds = [
        kind
        for found in judged.findings
        for kind in (found.origin.kind.split(", ") if found.origin else ["test"])
    ]
    cells = (
        row.id,
        row.what,
        status,
        _listed(kinds),
        _listed((found.place for found in judged.findings), "`"),
        _listed(short(own.commit) for own in origins),
        _listed([row.command] if row.command else commands, "`"),
        row.origin,
    )
    return [cell.replace("|", "/") for cell in cells]


def _listed(values: Iterable[str], mark: str = "") -> str:
    """Each once, in their order."""
    return ", ".join(f"{mark}{value}{mark}" for value in dict.fromkeys(values) if value)


def evidence_files(root: Path) -> list[str]:
    """Every file of evidence, by path."""
    found = {path for pattern in EVIDENCE for path in root.glob(pattern) if path.is_file()}
    return sorted({path.relative_to(root).as_posix() for path in found} - set(UNLISTED))


def unsigned_files(evidence: Evidence, names: Iterable[str]) -> list[str]:
    """Files that say no commit, neither themselves nor what they were made from."""
    found = [(name, origin_of(evidence.root, name, evidence.artifacts)) for name in names]
    return [name for name, origin in found if not origin.is_known]


def render_manifest(evidence: Evidence, names: Iterable[str], fresh: Mapping[str, bytes]) -> str:
    """File, SHA-256, commit, command; `fresh` are the contents of files not yet written."""
    rows = []
    for name in names:
        data = fresh[name] if name in fresh else (evidence.root / name).read_bytes()
        origin = origin_of(evidence.root, name, evidence.artifacts)
        rows.append(
            {
                "file": name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "commit": origin.commit or "unknown",
                "command": origin.command or "not recorded",
                "kind": origin.kind,
            }
        )
    return as_csv(rows)
