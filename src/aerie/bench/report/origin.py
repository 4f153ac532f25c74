"""Where the numbers of a file come from: its own commit, or that of the file it was made from."""

from __future__ import annotations

import csv
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from aerie.bench.report.rows import Artifact

# A commit as any of our files says it: `commit 0123abc`, `commit: …`, `'commit': '…'`.
_COMMIT = re.compile(r"commit\W{1,6}([0-9a-f]{7,40})\b")
SHORT = 10  # digits of a commit that are shown
UNKNOWN = ("", "unknown")
# An artifact whose sources are told by hash: the same sources give the same bytes.
BY_HASH, GENERATED = "by source hash", "generated"


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
    known = next((artifact for artifact in artifacts if fnmatch(name, artifact.path)), None)
    if known is None:
        return Origin(_commit(root / name), "", "")
    if known.origin in (BY_HASH, GENERATED):
        return Origin(known.origin, known.command, known.kind)
    source = root / (known.origin or name)
    return Origin(_commit(source), known.command, known.kind)


def _commit(path: Path) -> str:
    if not path.is_file():
        return ""
    if path.suffix == ".png":
        return ""
    readers = {".json": _of_json, ".csv": _of_csv, ".safetensors": _of_dump}
    return readers.get(path.suffix, _of_text)(path)


def _of_json(path: Path) -> str:
    """The provenance of a record, or of the parts it was put together from."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return ""
    found = sorted(_named_commits(values)) if isinstance(values, dict) else []
    return " ".join(found)


def _named_commits(values: dict[str, Any]) -> set[str]:
    for key in ("provenance", "origin"):
        inner = values.get(key)
        if isinstance(inner, dict) and isinstance(inner.get("commit"), str):
            return {inner["commit"]} - set(UNKNOWN)
    own = values.get("commit")
    return {own} - set(UNKNOWN) if isinstance(own, str) else set()


def _of_csv(path: Path) -> str:
    """Of a column `commit`, all that occur; of a comment on top otherwise."""
    text = path.read_text(encoding="utf-8")
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    if rows and "commit" in rows[0]:
        given = [row["commit"] or "" for row in rows]
        # One row that says nothing spoils the file: nobody can tell which number is meant.
        return "" if set(given) & set(UNKNOWN) else " ".join(sorted(set(given)))
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    return _in_text(comments)


def _of_dump(path: Path) -> str:
    """The metadata of a captured kernel call, which stands in front of its arrays."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return str(json.loads(metadata.get("provenance", "{}")).get("commit", ""))


def _of_text(path: Path) -> str:
    return _in_text(path.read_text(encoding="utf-8", errors="replace"))


def _in_text(text: str) -> str:
    found = _COMMIT.search(text)
    return found.group(1) if found else ""


def short(commit: str) -> str:
    """Commits cut to what a table has room for."""
    if commit in (BY_HASH, GENERATED):
        return commit
    return " ".join(part[:SHORT] for part in commit.split())
