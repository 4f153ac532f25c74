"""Where the numbers of a file come from, and hashes of the sources at the commits they name."""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import PACKAGE, WHOLE, Ages, Measured, content_hash, read_history
from aerie.bench.provenance import HASHED, files_at, hash_of, whole_name
from aerie.bench.record import open_rows, read_json
from aerie.bench.report.rows import Artifact, read_artifacts
from aerie.sources import hash_parts, part_of

# A commit as any of our files says it: `commit 0123abc`, `commit: …`, `'commit': '…'`.
_COMMIT = re.compile(r"commit\W{1,6}([0-9a-f]{7,40})\b")
SHORT = 10  # digits of a commit that are shown
UNKNOWN = ("", "unknown")
# An artifact whose sources are told by hash: the same sources give the same bytes.
BY_HASH, GENERATED = "by source hash", "generated"
_INSIDE = f"{PACKAGE}/"


@dataclass(frozen=True)
class Origin:
    """What a file says about itself; an empty commit means that it says nothing."""

    commit: str
    command: str
    kind: str

    @property
    def is_known(self) -> bool:
        """Whether a reader could go back to the sources."""
        return self.commit not in UNKNOWN


def origin_of(root: Path, name: str, artifacts: Sequence[Artifact]) -> Origin:
    """Command and kind by the table of artifacts, the commit from the file that has it."""
    known = _known(name, artifacts)
    if known is None:
        return Origin(_commit(root / name), "", "")
    if known.origin in (BY_HASH, GENERATED):
        return Origin(known.origin, known.command, known.kind)
    return Origin(_commit(root / (known.origin or name)), known.command, known.kind)


def changed_since(
    root: Path, name: str, artifacts: Sequence[Artifact], ages: Ages
) -> tuple[str, ...]:
    """Parts of the sources that are not as they were when a file's numbers were measured."""
    known = _known(name, artifacts)
    if known is None or not known.sources or known.origin in (BY_HASH, GENERATED):
        return ()
    return ages.changed(_records(root / (known.origin or name)).last, known.sources)


def last_commits(path: Path) -> set[str]:
    """Commits of a file's numbers, of raw rows only those that count."""
    return {commit for record in _records(path).last for commit in record.commit.split()}


def _known(name: str, artifacts: Sequence[Artifact]) -> Artifact | None:
    return next((artifact for artifact in artifacts if fnmatch(name, artifact.path)), None)


def _commit(path: Path) -> str:
    """Every commit that a file's numbers are from; empty if one of them does not say."""
    found = {commit for record in _records(path).every for commit in record.commit.split() or [""]}
    return "" if found & set(UNKNOWN) else " ".join(sorted(found))


@dataclass(frozen=True)
class _Records:
    """What a file's numbers are from; of raw rows, `last` are the last session of each point."""

    every: frozenset[Measured]
    last: frozenset[Measured]


def _records(path: Path) -> _Records:
    if not path.is_file():
        return _Records(frozenset(), frozenset())
    return _read(path, content_hash(path))


@lru_cache(maxsize=1024)
def _read(path: Path, digest: str) -> _Records:
    """The same contents are read once."""
    if ".csv" in path.suffixes:
        return _of_csv(path)
    readers = {".json": _of_json, ".safetensors": _of_dump, ".png": _of_picture}
    one = frozenset({readers.get(path.suffix, _of_text)(path)})
    return _Records(one, one)


def _of_json(path: Path) -> Measured:
    """The provenance of a record, or of the parts it was put together from."""
    try:
        values = read_json(path)
    except ValueError:
        return Measured("")
    return _provenance(values) if isinstance(values, dict) else Measured("")


def _provenance(values: dict[str, Any]) -> Measured:
    for inner in (values.get("provenance"), values.get("origin"), values):
        if isinstance(inner, dict) and isinstance(inner.get("commit"), str):
            return Measured(inner["commit"], str(inner.get(WHOLE) or ""))
    return Measured("")


def _of_csv(path: Path) -> _Records:
    """Of a column `commit`, all that occur; of a comment on top otherwise."""
    with open_rows(path, "rt") as stream:
        text = stream.read()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    if rows and "commit" in rows[0]:
        return _Records(_named(rows), _named(_last_sessions(rows)))
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    one = frozenset({Measured(_in_text(comments))})
    return _Records(one, one)


def _named(rows: list[dict[str, str]]) -> frozenset[Measured]:
    return frozenset(Measured(row["commit"] or "", row.get(WHOLE) or "") for row in rows)


def _last_sessions(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    place = ("scenario", "batch", "context")
    if not {"session", *place} <= set(rows[0]):
        return rows
    last: dict[tuple[str, ...], str] = {}
    for row in rows:
        key = tuple(row[name] for name in place)
        last[key] = max(last.get(key, ""), row["session"])
    return [row for row in rows if last[tuple(row[n] for n in place)] == row["session"]]


def _of_dump(path: Path) -> Measured:
    """The metadata of a captured kernel call, which stands in front of its arrays."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return Measured(str(json.loads(metadata.get("provenance", "{}")).get("commit", "")))


def _of_picture(path: Path) -> Measured:
    return Measured("")  # it has no room for it: an artifact names the file it was drawn from


def _of_text(path: Path) -> Measured:
    return Measured(_in_text(path.read_text(encoding="utf-8", errors="replace")))


def _in_text(text: str) -> str:
    found = _COMMIT.search(text)
    return found.group(1) if found else ""


def short(commit: str) -> str:
    """Commits cut to what a table has room for."""
    if commit in (BY_HASH, GENERATED):
        return commit
    return " ".join(part[:SHORT] for part in commit.split())


def learn(root: Path) -> dict[str, dict[str, str]]:
    """By commit that evidence names: what the table knows, else what git tells where it can."""
    known = read_history(root)
    found: dict[str, dict[str, str]] = {}
    for commit in sorted(_evidence_commits(root)):
        full = next((name for name in known if name.startswith(commit)), None)
        if full is not None:
            found[full] = known[full]
        elif (full := whole_name(root, commit)) is not None:
            found[full] = hashes_of(_sources(root, full))
    return {name: found[name] for name in sorted(found)}


def render_history(root: Path) -> str:
    """The table as its file has it."""
    return json.dumps({"commits": learn(root)}, indent=1) + "\n"


def _evidence_commits(root: Path) -> set[str]:
    """Commits of all evidence whose numbers depend on our sources."""
    patterns = {a.origin or a.path for a in read_artifacts(root) if a.sources}
    files = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    return {commit for path in files for commit in last_commits(path)}


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Hashes of the parts, and of all sources byte for byte; files by their path in the package."""
    return {WHOLE: hash_of(files), **hash_parts(files.items())}


def _sources(root: Path, commit: str) -> dict[str, bytes]:
    """Code and tables of the package as a commit has them, by their path inside it."""
    found = files_at(root, commit, PACKAGE, lambda name: _is_hashed(name.removeprefix(_INSIDE)))
    return {name.removeprefix(_INSIDE): data for name, data in found.items()}


def _is_hashed(name: str) -> bool:
    return name.endswith(HASHED) or part_of(name) is not None
