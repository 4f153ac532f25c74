"""Which parts of the sources have changed since a figure was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aerie.errors import UnknownNameError
from aerie.kernels.registry import backend_info
from aerie.sources import hash_parts, join_hashes, read_package

HISTORY = "reports/sources_by_commit.json"
PACKAGE = "src/aerie"
WHOLE = "source_sha256"  # the hash a record carries: of all sources, byte for byte
_ENGINE = ("attention", "engine", "kernels", "models", "speculation")
_TRITON = ("kernels/pytorch", "kernels/triton_gpu")
# What a figure depends on, by the kind of run that made it. A sweep does not depend on the table
# that was made from it.
KINDS: dict[str, tuple[str, ...]] = {
    "gpu engine": (
        *_ENGINE,
        *_TRITON,
        "attention tables",
        "kernels/triton_gpu tables",
        "speculation tables",
    ),
    "gpu kernels": ("kernels", *_TRITON),
    "gpu attention": ("attention", "attention tables"),
    "gpu attention sweep": ("attention",),
    "gpu products sweep": ("kernels/triton_gpu",),
    "cpu engine": (*_ENGINE, "kernels/numpy_cpu", "kernels/reference"),
    "cpu kernels": ("kernels", "kernels/pytorch", "kernels/reference"),
    "hls": ("kernels", "kernels/hls", "kernels/reference"),
    "hls engine": (*_ENGINE, "kernels/hls", "kernels/pytorch", "kernels/reference"),
    "models": ("attention", "models"),
}


class Measured(NamedTuple):
    """The sources of one record: a commit, and the hash of all sources where it carries one."""

    commit: str
    source_sha256: str = ""


@dataclass(frozen=True)
class Ages:
    """The sources as they are, and as they were at the commits that records name.

    Without any, as where no checkout is at hand, it tells of no change.
    """

    now: Mapping[str, str] = field(default_factory=dict)
    commits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def changed(self, measured: Iterable[Measured], kind: str) -> tuple[str, ...]:
        """What is not as it was: names of parts, or why that cannot be told; empty if nothing."""
        if kind not in KINDS:
            raise UnknownNameError("kind of sources", kind, KINDS)
        found: dict[str, None] = {}
        for record in sorted(set(measured)) if self.now else ():
            found |= dict.fromkeys(self._since(record, KINDS[kind]))
        return tuple(found)

    def _since(self, record: Measured, parts: Iterable[str]) -> list[str]:
        then = self.at(record.commit)
        if then is None:
            return [f"sources of {record.commit[:10] or 'no commit'} unknown"]
        if record.source_sha256 and record.source_sha256 != then[WHOLE]:
            return [f"sources were not those of {record.commit[:10]}"]
        return [part for part in parts if self.now.get(part) != then.get(part)]

    def at(self, commit: str) -> Mapping[str, str] | None:
        """Hashes of the parts at a commit, which may be shortened; None: they are not on record."""
        known = (own for name, own in self.commits.items() if commit and name.startswith(commit))
        return next(known, None)

    def backend_at(self, commit: str, backend: str) -> str:
        """What `parity.matrix.sources_hash` would have said of a backend; empty if unknown."""
        then = self.at(commit)
        if then is None:
            return ""
        found: dict[str, str] = {}
        name: str | None = backend
        while name is not None:
            info = backend_info(name)
            part = info.module.removeprefix("aerie.").replace(".", "/")
            found[info.name], name = then.get(part, ""), info.base
        return join_hashes(found)


UNTOLD = Ages()


def read_ages(root: Path) -> Ages:
    """The sources of a checkout, and its table of earlier ones."""
    return Ages(hash_parts(read_package(root / PACKAGE)), read_history(root))


def read_history(root: Path) -> dict[str, dict[str, str]]:
    """By commit: hashes of its parts, and WHOLE."""
    path = root / HISTORY
    if not path.is_file():
        return {}
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["commits"]
    return found
