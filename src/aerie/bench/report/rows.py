"""The rows of the scorecard and the checks behind each; what the last run said of their tests."""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from aerie.bench.gates.data import KINDS
from aerie.bench.record import BOUNDS, read_json
from aerie.config.values import choice
from aerie.errors import UsageError
from aerie.sources import syntax_of

FOLDER = Path("evidence/scorecard")
ARTIFACTS = "artifacts.toml"
# What a check looks at.
SUBJECTS = ("test", "record", "file", "gate", "parity", "contract")
RESULTS = "reports/test_results.json"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Check:
    """One piece of evidence: exactly one subject; a record also names a field and a bound."""

    subject: str  # one of SUBJECTS
    target: str  # a test, a path, a pattern of gate names, a kernel backend, or a contract
    field: str = ""
    bound: str = ""  # one of BOUNDS
    value: object = None

    def __str__(self) -> str:
        shown = f" {self.field} {BOUNDS[self.bound][0]} {self.value}" if self.field else ""
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
    names what the numbers depend on, one of `gates.data.KINDS`; empty: on no source of ours.
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
        choice(f"sources of {artifact.path!r}", artifact.sources, ("", *KINDS))
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
    subject = next((name for name in SUBJECTS if name in entry), "")
    bound = next((name for name in BOUNDS if name in entry), "")
    keys = {"record", "field", bound} if subject == "record" else {subject}
    if set(entry) != keys:
        raise UsageError(
            f"{path}: {dict(entry)} is no check; it has one of {SUBJECTS}, and a record, and only"
            f" a record, has a field with one of {tuple(BOUNDS)}"
        )
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


class Result(NamedTuple):
    """Of all ids of one test: failed if one failed, passed if none did and one passed."""

    outcome: str
    code: str  # of the test function as it was when it ran


def read_results(root: Path) -> dict[str, dict[str, Result]]:
    """By run (`make test`, `make slow`), then by `path::test`; empty where none was written."""
    path = root / RESULTS
    if not path.is_file():
        return {}
    given = read_json(path)
    return {
        run: {name: Result(*own) for name, own in tests.items()} for run, tests in given.items()
    }


def results_of(runs: Mapping[str, Mapping[str, Result]], target: str) -> list[Result]:
    """What the runs said of one test; some of its ids may be slow and others not."""
    return [tests[target] for tests in runs.values() if target in tests]


def find_test(root: Path, target: str) -> ast.FunctionDef | None:
    """The function that `path::name` names, where it is."""
    path, _, name = target.partition("::")
    file = root / path
    if not file.is_file():
        return None
    return _functions(file.read_bytes()).get(name)


@lru_cache(maxsize=256)
def _functions(source: bytes) -> Mapping[str, ast.FunctionDef]:
    body = ast.parse(source).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def code_of_test(function: ast.FunctionDef) -> str:
    """A short hash of a test with its decorators; comments and docstrings do not count."""
    return hashlib.sha256(syntax_of(function).encode()).hexdigest()[:16]


def is_empty(function: ast.FunctionDef) -> bool:
    """Whether a test can say nothing: no call and no assertion before it returns."""
    for statement in function.body:
        if isinstance(statement, ast.Return):
            return True
        for node in ast.walk(statement):
            is_claim = isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)
            if isinstance(node, ast.Call) or is_claim:
                return False
    return True
