"""The rows of the scorecard and the checks behind each, read strictly from scorecard/*.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aerie.bench.gates.ages import KINDS
from aerie.errors import UnknownNameError, UsageError

FOLDER = Path("scorecard")
ARTIFACTS = "artifacts.toml"
# What a check looks at, and what a figure of a record is held against.
SUBJECTS = ("test", "record", "file", "gate", "parity", "contract")
BOUNDS = ("at_least", "at_most", "equals")


@dataclass(frozen=True)
class Check:
    """One piece of evidence: exactly one subject; a record also names a field and a bound."""

    subject: str  # one of SUBJECTS
    target: str  # a test, a path, a pattern of gate names, a kernel backend, or a contract
    field: str = ""
    bound: str = ""  # one of BOUNDS
    value: object = None

    def __str__(self) -> str:
        signs = {"at_least": "≥", "at_most": "≤", "equals": "="}
        shown = f" {self.field} {signs[self.bound]} {self.value}" if self.field else ""
        return f"{self.target}{shown}"


@dataclass(frozen=True)
class Row:
    """One promise. Without checks it is open, unless it is not needed."""

    id: str
    what: str
    checks: tuple[Check, ...] = ()
    command: str = ""  # what produces the evidence; else that of the first artifact
    missing: str = ""  # what no check can see yet: the row stays open
    not_needed: str = ""  # the reason
    kernels: str = ""  # a claim about speed: the backend whose parity it depends on
    kill: bool = False  # if it fails, features stop until the design was reviewed
    origin: str = ""  # the item of the list that asked for it


@dataclass(frozen=True)
class Section:
    """Rows that come from one list."""

    title: str
    about: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Artifact:
    """Files that one command writes; `origin` is the file that says where their numbers are from.

    `origin` is the file itself when empty. `kind` is what every table here must say. `sources`
    names what the numbers depend on, one of `gates.ages.KINDS`; empty: on no source of ours.
    """

    path: str  # a pattern, relative to the repository root; the first that matches counts
    command: str
    kind: str
    origin: str = ""
    sources: str = ""


def read_sections(root: Path) -> list[Section]:
    """Every list, in the order of the file names."""
    files = sorted((root / FOLDER).glob("*.toml"))
    found = [_section(path) for path in files if path.name != ARTIFACTS]
    if not found:
        raise UsageError(f"no rows in {root / FOLDER}; run this in the root of a checkout")
    ids = [row.id for section in found for row in section.rows]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise UsageError(f"rows of the scorecard with the same id: {', '.join(twice)}")
    return found


def read_artifacts(root: Path) -> list[Artifact]:
    """What writes each file of evidence."""
    path = root / FOLDER / ARTIFACTS
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    found: list[Artifact] = [_fill(Artifact, entry, path) for entry in given["artifact"]]
    for artifact in found:
        if artifact.sources and artifact.sources not in KINDS:
            raise UnknownNameError(f"sources of {artifact.path!r}", artifact.sources, KINDS)
    return found


def _section(path: Path) -> Section:
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = set(given) - {"title", "about", "row"}
    if unknown:
        raise UsageError(f"{path}: unknown keys {sorted(unknown)}")
    rows = []
    for entry in given["row"]:
        checks = tuple(_check(one, path) for one in entry.pop("checks", ()))
        rows.append(_fill(Row, {**entry, "checks": checks}, path))
        if rows[-1].not_needed and (checks or rows[-1].missing):
            raise UsageError(f"{path}: row {rows[-1].id} is not needed and has checks")
    return Section(given["title"], given["about"], tuple(rows))


def _check(entry: Mapping[str, Any], path: Path) -> Check:
    subjects = [name for name in SUBJECTS if name in entry]
    bounds = [name for name in BOUNDS if name in entry]
    unknown = set(entry) - {*SUBJECTS, *BOUNDS, "field"}
    has_figure = ("field" in entry, len(bounds)) in ((True, 1), (False, 0))
    if unknown or len(subjects) != 1 or not has_figure:
        raise UsageError(
            f"{path}: {dict(entry)} is no check; it has one of {SUBJECTS}, and a record has a"
            f" field with one of {BOUNDS}"
        )
    if (subjects[0] == "record") != bool(bounds):
        raise UsageError(f"{path}: {dict(entry)}: a record, and only a record, has a field")
    bound = bounds[0] if bounds else ""
    subject = subjects[0]
    return Check(subject, entry[subject], entry.get("field", ""), bound, entry.get(bound))


def _fill(kind: type[Any], entry: Mapping[str, Any], path: Path) -> Any:
    known = {field.name for field in fields(kind)}
    unknown = set(entry) - known
    if unknown:
        raise UsageError(f"{path}: unknown keys {sorted(unknown)}; known: {sorted(known)}")
    try:
        return kind(**entry)
    except TypeError as error:
        raise UsageError(f"{path}: {dict(entry)}: {error}") from error
