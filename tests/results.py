"""Writes down, or checks, what a full run says of the tests that the scorecard's rows name.

`make test` and `make slow` load it with `-p tests.results --results write`: each puts the results
of the tests that it ran into reports/test_results.json. With `--results check`, as CI runs it, a
run that says anything else than the file fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_WHOLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def named_tests(root: Path) -> list[str]:
    """Every `path::test` that a row of the scorecard names."""
    from aerie.bench.report.rows import read_sections

    checks = (check for s in read_sections(root) for row in s.rows for check in row.checks)
    return sorted({check.target for check in checks if check.subject == "test"})


def render_results(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """One line a test, so that two branches seldom meet in one."""
    tables = [
        f' "{run}": {{\n'
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(own[name])}" for name in sorted(own))
        + "\n }"
        for run, own in sorted(runs.items())
    ]
    return "{\n" + ",\n".join(tables) + "\n}\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "Write or check the results of the tests that rows of the scorecard name."
    parser.addoption("--results", choices=("write", "check"), default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    # Workers report to the process that started them, so only that one has them all.
    mode = config.getoption("--results")
    if mode and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(config.rootpath), mode))


class Recorder:
    """Collects outcomes by test function; all its ids together make one result."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root, self.mode = root, mode
        self.named = set(named_tests(root))
        self.outcomes: dict[str, set[str]] = {}
        self.complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        # Setup and teardown of a test that passed say nothing more; a failed one does.
        if name in self.named and (report.when == "call" or report.outcome != "passed"):
            self.outcomes.setdefault(name, set()).add(report.outcome)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        from aerie.bench.report.rows import RESULTS, read_results

        if exitstatus not in _WHOLE:
            return  # interrupted: what did not run is not known
        run = "make slow" if session.config.option.markexpr == "slow" else "make test"
        runs = read_results(self.root)
        known, found = runs.get(run, {}), self._found()
        # Known, the same as then, and silent now: kept by a run that writes, else a failure.
        silent = {
            name: result
            for name, result in known.items()
            if name in self.named and name not in found and result.code == self._code(name)
        }
        if self.mode == "check":
            self.complaints = [
                f"{name}: {' of '.join(result)} here, {' of '.join(known.get(name, ('nothing',)))}"
                f" in {RESULTS}"
                for name, result in sorted(found.items())
                if known.get(name) != result
            ]
            self.complaints += [f"{name}: did not run here" for name in silent]
            if self.complaints:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        for name, result in found.items():
            # A machine without a tool cannot say more of a test than one that ran it.
            is_known = name in known and known[name].code == result.code
            if result.outcome == "skipped" and is_known:
                found[name] = known[name]
        if found:
            path, text = self.root / RESULTS, render_results({**runs, run: {**silent, **found}})
            if not path.is_file() or path.read_text("utf-8") != text:
                path.write_text(text, encoding="utf-8")

    def _found(self) -> dict[str, Any]:
        from aerie.bench.report.rows import Result

        found = {}
        for name, outcomes in self.outcomes.items():
            worst = next(o for o in ("failed", "passed", "skipped") if o in outcomes)
            found[name] = Result(worst, self._code(name))
        return found

    def _code(self, name: str) -> str:
        """The hash of a test as it is; empty if it is gone."""
        from aerie.bench.report.rows import code_of_test, find_test

        function = find_test(self.root, name)
        return "" if function is None else code_of_test(function)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self.complaints:
            terminalreporter.write_line(line)
        if self.complaints:
            terminalreporter.write_line("run `make test` and commit what it wrote")
