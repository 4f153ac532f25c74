"""What the last full run said of the tests that rows name, and whether they still say it."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from aerie.bench.report.rows import read_sections
from aerie.sources import syntax_of

RESULTS = "reports/test_results.json"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Result(NamedTuple):
    """Of all ids of one test: failed if one failed, passed if none did and one passed."""

    outcome: str
    code: str  # of the test function as it was when it ran


def named_tests(root: Path) -> list[str]:
    """Every `path::test` that a row of the scorecard names."""
    checks = (check for s in read_sections(root) for row in s.rows for check in row.checks)
    return sorted({check.target for check in checks if check.subject == "test"})


def read_results(root: Path) -> dict[str, dict[str, Result]]:
    """By run (`make test`, `make slow`), then by `path::test`; empty where none was written."""
    path = root / RESULTS
    if not path.is_file():
        return {}
    given = json.loads(path.read_text(encoding="utf-8"))
    return {
        run: {name: Result(*own) for name, own in tests.items()} for run, tests in given.items()
    }


def results_of(runs: Mapping[str, Mapping[str, Result]], target: str) -> list[Result]:
    """What the runs said of one test; some of its ids may be slow and others not."""
    return [tests[target] for tests in runs.values() if target in tests]


def render_results(runs: Mapping[str, Mapping[str, Result]]) -> str:
    """One line a test, so that two branches seldom meet in one."""
    tables = [
        f' "{run}": {{\n'
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(own[name])}" for name in sorted(own))
        + "\n }"
        for run, own in sorted(runs.items())
    ]
    return "{\n" + ",\n".join(tables) + "\n}\n"


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
