"""Writes the scorecard and the manifest from judged rows and the files of the checkout."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from aerie.bench.record import line, page, table
from aerie.bench.report.checks import (
    FAIL,
    OPEN,
    PASS,
    STALE,
    STATUSES,
    Evidence,
    Finding,
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
    lines += [f"- {one.row.id}: {words[one.status]}{_because(one)}" for one in criteria]
    if kill_holds(every):
        return [*lines, "", f"Features stop; `{REVIEW}` is written first."]
    return [*lines, "", f"`{REVIEW}` is written only when one holds."]


def _because(judged: Judged) -> str:
    said = f" ({'; '.join(judged.notes)})" if judged.notes else ""
    return said + shown_changes(judged.changed)


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
    places = dict.fromkeys(found.place for found in judged.findings)
    commits = dict.fromkeys(
        short(found.origin.commit) for found in judged.findings if found.origin is not None
    )
    cells = (
        row.id,
        row.what,
        status,
        ", ".join(_kinds(judged.findings)),
        ", ".join(f"`{place}`" for place in places),
        ", ".join(commit for commit in commits if commit),
        _command(judged),
        row.origin,
    )
    return [cell.replace("|", "/") for cell in cells]


def _kinds(findings: Iterable[Finding]) -> list[str]:
    kinds = [found.origin.kind.split(", ") if found.origin else ["test"] for found in findings]
    return [kind for kind in dict.fromkeys(one for some in kinds for one in some) if kind]


def _command(judged: Judged) -> str:
    if judged.row.command:
        return f"`{judged.row.command}`"
    made = [found.origin.command for found in judged.findings if found.origin is not None]
    commands = dict.fromkeys(command for command in made if command)
    if any(found.origin is None for found in judged.findings):
        commands.setdefault("make test")
    return ", ".join(f"`{command}`" for command in commands)


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
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("file", "sha256", "commit", "command", "kind"))
    for name in names:
        data = fresh[name] if name in fresh else (evidence.root / name).read_bytes()
        origin = origin_of(evidence.root, name, evidence.artifacts)
        digest = hashlib.sha256(data).hexdigest()
        command = origin.command or "not recorded"
        writer.writerow((name, digest, origin.commit or "unknown", command, origin.kind))
    return out.getvalue()
