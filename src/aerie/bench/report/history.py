"""The table of earlier sources: hashes of every commit that evidence names, asked of git once."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from aerie.bench.gates.ages import PACKAGE, WHOLE, read_history
from aerie.bench.report.origin import last_commits
from aerie.bench.report.rows import read_artifacts
from aerie.sources import hash_parts, part_of

_HASHED = (".py", ".hpp", ".cpp")  # as `bench.provenance.source_hash` takes them


def learn(root: Path) -> dict[str, dict[str, str]]:
    """By commit that evidence names: what the table knows, else what git tells where it can."""
    known = read_history(root)
    found: dict[str, dict[str, str]] = {}
    for commit in sorted(_named(root)):
        full = next((name for name in known if name.startswith(commit)), None)
        if full is not None:
            found[full] = known[full]
        elif (full := _whole_name(root, commit)) is not None:
            found[full] = hashes_of(_files(root, full))
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


def _files(root: Path, commit: str) -> dict[str, bytes]:
    """Code and tables of the package as a commit has them, by their path inside it."""
    listed = _git(root, "ls-tree", "-r", "-z", "--name-only", commit, "--", PACKAGE)
    inside = [name.removeprefix(f"{PACKAGE}/") for name in listed.decode().split("\0") if name]
    wanted = [name for name in inside if name.endswith(_HASHED) or part_of(name)]
    asked = "".join(f"{commit}:{PACKAGE}/{name}\n" for name in wanted)
    answer = _git(root, "cat-file", "--batch", stdin=asked.encode())
    found, start = {}, 0
    for name in wanted:
        # A line `hash blob size`, then so many bytes and a line end.
        head, _, _ = answer[start : start + 200].partition(b"\n")
        begin = start + len(head) + 1
        end = begin + int(head.split()[2])
        found[name] = answer[begin:end]
        start = end + 1
    return found


def _whole_name(root: Path, commit: str) -> str | None:
    """The full hash of a commit; None where git or the commit is not there."""
    try:
        return _git(root, "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout
