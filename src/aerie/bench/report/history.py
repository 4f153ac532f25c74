"""The table of earlier sources: hashes of every commit that evidence names, asked of git once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from aerie.bench.gates.ages import PACKAGE, WHOLE, read_history
from aerie.bench.provenance import files_at, whole_name
from aerie.bench.report.origin import last_commits
from aerie.bench.report.rows import read_artifacts
from aerie.sources import hash_parts, part_of

_INSIDE = f"{PACKAGE}/"
_HASHED = (".py", ".hpp", ".cpp")  # as `bench.provenance.source_hash` takes them


def learn(root: Path) -> dict[str, dict[str, str]]:
    """By commit that evidence names: what the table knows, else what git tells where it can."""
    known = read_history(root)
    found: dict[str, dict[str, str]] = {}
    for commit in sorted(_named(root)):
        full = next((name for name in known if name.startswith(commit)), None)
        if full is not None:
            found[full] = known[full]
        elif (full := whole_name(root, commit)) is not None:
            found[full] = hashes_of(_sources(root, full))
    return {name: found[name] for name in sorted(found)}


def render(root: Path) -> str:
    """The table as its file has it."""
    return json.dumps({"commits": learn(root)}, indent=1) + "\n"


def _named(root: Path) -> set[str]:
    """Commits of all evidence whose numbers depend on our sources."""
    patterns = {a.origin or a.path for a in read_artifacts(root) if a.sources}
    files = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    return {commit for path in files for commit in last_commits(path)}


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Hashes of the parts, and of all sources byte for byte; files by their path in the package."""
    whole = hashlib.sha256()
    # Sorted as paths, not as texts: so the hash in a record was made.
    for name in sorted(files, key=Path):
        if name.endswith(_HASHED):
            whole.update(name.encode() + files[name])
    return {WHOLE: whole.hexdigest(), **hash_parts(files.items())}


def _sources(root: Path, commit: str) -> dict[str, bytes]:
    """Code and tables of the package as a commit has them, by their path inside it."""
    found = files_at(root, commit, PACKAGE, lambda name: _is_hashed(name.removeprefix(_INSIDE)))
    return {name.removeprefix(_INSIDE): data for name, data in found.items()}


def _is_hashed(name: str) -> bool:
    return name.endswith(_HASHED) or part_of(name) is not None
