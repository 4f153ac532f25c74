"""Asks git for files as an earlier commit has them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path


def whole_name(root: Path, commit: str) -> str | None:
    """The full hash of a commit; None where git or the commit is not there."""
    try:
        return _git(root, "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def files_at(
    root: Path, commit: str, folder: str, is_wanted: Callable[[str], bool]
) -> dict[str, bytes]:
    """Contents of the wanted files below a folder, by path."""
    listed = _git(root, "ls-tree", "-r", "-z", "--name-only", commit, "--", folder)
    names = [name for name in listed.decode().split("\0") if name and is_wanted(name)]
    asked = "".join(f"{commit}:{name}\n" for name in names)
    answer = _git(root, "cat-file", "--batch", stdin=asked.encode())
    found, start = {}, 0
    for name in names:
        # A line `hash blob size`, then so many bytes and a line end.
        begin = answer.index(b"\n", start) + 1
        end = begin + int(answer[start:begin].split()[2])
        found[name] = answer[begin:end]
        start = end + 1
    return found


def _git(root: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout
