"""Where the numbers of a file come from, and hashes of the sources at the commits they name."""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from aerie.bench.gates.data import PACKAGE, WHOLE, Ages, Measured, read_history
from aerie.bench.provenance import HASHED, files_at, hash_of, whole_name
from aerie.bench.record import PACKED, open_rows, read_once
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


def _known(name: str, artifacts: Sequence[Artifact]) -> Artifact | None:
    return next((artifact for artifact in artifacts if fnmatch(name, artifact.path)), None)


def _commit(path: Path) -> str:
    """Every commit that a file's numbers are from; empty if one of them does not say."""
    found = {commit for record in _records(path).every for commit in record.commit.split() or [""]}
    return "" if found & set(UNKNOWN) else " ".join(sorted(found))


class _Records(NamedTuple):
    """What a file's numbers are from; of raw rows, `last` are the last session of each point."""

    every: frozenset[Measured] = frozenset()
    last: frozenset[Measured] = frozenset()


def _records(path: Path) -> _Records:
    return _read(path) if path.is_file() else _Records()


@read_once
def _read(path: Path) -> _Records:
    if ".csv" in path.suffixes:
        every, last = _of_csv(path)
    else:
        suffix = path.name.removesuffix(PACKED).rpartition(".")[2]
        every = last = [_READERS.get(suffix, _of_page)(path)]
    return _Records(_named(every), _named(last))


def _named(origins: Iterable[Mapping[str, Any]]) -> frozenset[Measured]:
    """Commit and hash of each, as far as they are told."""
    return frozenset(
        Measured(str(own.get("commit") or ""), str(own.get(WHOLE) or "")) for own in origins
    )


def _of_json(path: Path) -> Mapping[str, Any]:
    """The provenance of a record, or of the parts it was put together from."""
    try:
        with open_rows(path, "rt") as stream:
            values = json.load(stream)
    except ValueError:
        return {}
    own = values if isinstance(values, dict) else {}
    parts = (own.get("provenance"), own.get("origin"), own)
    told = (part for part in parts if isinstance(part, dict))
    return next((part for part in told if isinstance(part.get("commit"), str)), {})


def _of_csv(path: Path) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Of a column `commit`, all that occur and those that count; of a comment on top otherwise."""
    with open_rows(path, "rt") as stream:
        lines = stream.read().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    if not rows or "commit" not in rows[0]:
        told = [_of_text("\n".join(line for line in lines if line.startswith("#")))]
        return told, told
    place = ("scenario", "batch", "context")
    if not {"session", *place} <= set(rows[0]):
        return rows, rows
    last: dict[tuple[str, ...], str] = {}
    for row in rows:
        key = tuple(row[name] for name in place)
        last[key] = max(last.get(key, ""), row["session"])
    return rows, [row for row in rows if last[tuple(row[n] for n in place)] == row["session"]]


def _of_dump(path: Path) -> Mapping[str, Any]:
    """The metadata of a captured kernel call, which stands in front of its arrays."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    found: Mapping[str, Any] = json.loads(metadata.get("provenance", "{}"))
    return {"commit": found.get("commit")}


def _of_page(path: Path) -> Mapping[str, Any]:
    return _of_text(path.read_text(encoding="utf-8", errors="replace"))


def _of_text(text: str) -> Mapping[str, Any]:
    found = _COMMIT.search(text)
    return {"commit": found.group(1)} if found else {}


_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    "json": _of_json,
    "safetensors": _of_dump,
    "png": lambda path: {},  # it has no room for it: an artifact names what it was drawn from
}


def short(commit: str) -> str:
    """Commits cut to what a table has room for."""
    if commit in (BY_HASH, GENERATED):
        return commit
    return " ".join(part[:SHORT] for part in commit.split())


def learn(root: Path) -> dict[str, dict[str, str]]:
    """By commit that evidence names: what the table knows, else what git tells where it can."""
    known, found = read_history(root), dict[str, dict[str, str]]()
    # Of all evidence whose numbers depend on our sources.
    patterns = {a.origin or a.path for a in read_artifacts(root) if a.sources}
    files = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    commits = {one for path in files for own in _records(path).last for one in own.commit.split()}
    for commit in sorted(commits):
        full = next((name for name in known if name.startswith(commit)), None)
        if full is not None:
            found[full] = known[full]
        elif (full := whole_name(root, commit)) is not None:
            sources = files_at(root, full, PACKAGE, _is_hashed)
            inside = {name.removeprefix(_INSIDE): data for name, data in sources.items()}
            found[full] = hashes_of(inside)
    return {name: found[name] for name in sorted(found)}


def _is_hashed(name: str) -> bool:
    return name.endswith(HASHED) or part_of(name.removeprefix(_INSIDE)) is not None


def render_history(root: Path) -> str:
    """The table as its file has it."""
    return json.dumps({"commits": learn(root)}, indent=1) + "\n"


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Hashes of the parts, and of all sources byte for byte; files by their path in the package."""
    return {WHOLE: hash_of(files), **hash_parts(files.items())}
