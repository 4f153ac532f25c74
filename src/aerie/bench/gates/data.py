"""What gates are made of: floors, recorded figures that say where they come from, and their age."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from aerie.bench.contract import PLANNER
from aerie.bench.record import read_json, read_once
from aerie.bench.rows import Row, newest, read_rows
from aerie.bench.summary import LEAST_PAIRS
from aerie.config.values import choice
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
_HASH, _COMMIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{7,40}")


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
        choice("kind of sources", kind, KINDS)
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
    return dict(read_json(path)["commits"]) if path.is_file() else {}


@dataclass(frozen=True)
class Gate:
    """One floor, and which figure of which file it is held against."""

    name: str
    check: str  # a name of `gates_checks.CHECKS`
    file: str  # in the folder of the reports
    floor: float
    aim: float | None = None
    sense: str = "at_least"
    suite: str = "recorded"  # "micro", "full": what `aerie gates run` measures first
    parity: str | None = None  # the backend whose matrix must be whole, of the same sources
    scenario: str = "*"
    batch: int | None = None
    context: int | None = None
    policy: str = PLANNER
    path: str = ""  # in a JSON record: names with dots; `key=value,…` picks an entry
    sources: str = "gpu engine"  # one of `ages.KINDS`: what the figure depends on


class Refused(Exception):
    """There is no figure, or none that counts; the message says why."""


@dataclass(frozen=True)
class Folder:
    """Recorded data; `rows` stands in for the raw file where a run judges its own rows."""

    root: Path
    rows: Sequence[Row] | None = None
    least_pairs: int = LEAST_PAIRS
    ages: Ages = UNTOLD

    def origins(self, gate: Gate) -> list[Mapping[str, Any]]:
        """Where a gate's figure comes from: commit and hashes of every row or record."""
        if gate.file.endswith((".csv", ".csv.xz")):
            return [vars(row) for own in self.places(gate).values() for row in own]
        records = [self.record(name) for name in gate.file.split()]
        return [{**record, **record["provenance"]} for record in records]

    def measured(self, gate: Gate) -> set[Measured]:
        """The sources a gate's figure was measured with."""
        return {Measured(own["commit"], own["source_sha256"]) for own in self.origins(gate)}

    def record(self, name: str) -> Any:
        """A JSON file that names its commit, sources and device."""
        path = self.root / name
        if not path.is_file():
            raise Refused(f"{name} does not exist")
        values = read_json(path)
        origin = values.get("provenance", {})
        for key in ("commit", "source_sha256", "device", "date"):
            _require_known(name, key, origin.get(key))
        return values

    def places(self, gate: Gate) -> dict[tuple[str, int, int], list[Row]]:
        """Rows of the points a gate is about, by point, the last session of each."""
        last = read_newest(self.root / gate.file) if self.rows is None else newest(self.rows)
        found = {
            key: own
            for key, own in last.items()
            if gate.scenario in ("*", key[0])
            and gate.batch in (None, key[1])
            and gate.context in (None, key[2])
            and any(row.policy == gate.policy for row in own)
        }
        if not found:
            raise Refused(f"{gate.file} has no rows of {gate.policy} there")
        traced = ("commit", "source_sha256", "kernel_sha256", "device", "torch", "date", "contract")
        for row in (row for own in found.values() for row in own):
            for key in traced:
                _require_known(gate.file, key, getattr(row, key))
        return found


def read_newest(path: Path) -> dict[tuple[str, int, int], list[Row]]:
    """By point, the rows of a raw file's last session there; the same contents are read once."""
    return _newest(path) if path.is_file() else {}


@read_once
def _newest(path: Path) -> dict[tuple[str, int, int], list[Row]]:
    return newest(read_rows(path))


def _require_known(name: str, key: str, value: Any) -> None:
    """Data that cannot be traced is refused, whatever it says."""
    text = str(value or "")
    patterns = {"commit": _COMMIT, "source_sha256": _HASH, "kernel_sha256": _HASH}
    is_known = text not in ("", "None", "unknown")
    if not is_known or (key in patterns and not patterns[key].fullmatch(text)):
        raise Refused(f"{name} has no provenance: {key} is {text or 'missing'!r}")
