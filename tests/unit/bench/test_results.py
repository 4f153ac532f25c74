"""What `make test` writes down of named tests, and what CI refuses to call the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.bench.report.rows import RESULTS, read_results

pytest_plugins = ("pytester",)

ROWS = """title = "t"
about = "a"
[[row]]
id = "1"
what = "x"
checks = [
    { test = "tests/test_a.py::test_many" },
    { test = "tests/test_a.py::test_one" },
    { test = "tests/test_a.py::test_slow" },
    { test = "tests/test_a.py::test_tool" },
]
"""
TESTS = """import pytest

@pytest.mark.parametrize("n", [1, 2, 3])
def test_many(n):
    assert n < 4

def test_one():
    assert sum([1, 1]) == 2

@pytest.mark.slow
def test_slow():
    assert sum([2, 1]) == 3

@pytest.fixture
def tool():
    pytest.skip("no tool here")

def test_tool(tool):
    assert tool

def test_unnamed():
    assert not []
"""


@pytest.fixture
def checkout(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makefile(".toml", **{"evidence/scorecard/1": ROWS})
    pytester.makeini("[pytest]\nmarkers = slow: long\n")
    (pytester.path / "tests").mkdir()
    (pytester.path / "reports").mkdir()
    rewrite(pytester, TESTS)
    return pytester


def rewrite(pytester: pytest.Pytester, text: str) -> None:
    (pytester.path / "tests/test_a.py").write_text(text, encoding="utf-8")


def run(pytester: pytest.Pytester, mode: str, *options: str) -> pytest.RunResult:
    return pytester.runpytest("-p", "tests.results", "--results", mode, *options)


def outcomes(root: Path, run: str = "make test") -> dict[str, str]:
    found = read_results(root).get(run, {})
    return {name.partition("::")[2]: result.outcome for name, result in found.items()}


def test_a_run_writes_the_named_tests_it_ran(checkout: pytest.Pytester) -> None:
    run(checkout, "write", "-m", "not slow").assert_outcomes(passed=5, skipped=1, deselected=1)
    first = {"test_many": "passed", "test_one": "passed", "test_tool": "skipped"}
    assert outcomes(checkout.path) == first
    run(checkout, "write", "-m", "slow")
    assert outcomes(checkout.path, "make slow") == {"test_slow": "passed"}
    assert outcomes(checkout.path) == first
    before = (checkout.path / RESULTS).read_bytes()
    assert run(checkout, "check", "-m", "not slow").ret == 0
    assert (checkout.path / RESULTS).read_bytes() == before


def test_workers_report_to_the_one_that_writes(checkout: pytest.Pytester) -> None:
    run(checkout, "write", "-n", "1", "-p", "no:schemathesis", "-p", "no:hypothesispytest")
    assert outcomes(checkout.path)["test_many"] == "passed"


def test_one_failed_id_fails_the_test(checkout: pytest.Pytester) -> None:
    rewrite(checkout, TESTS.replace("n < 4", "n < 3"))
    run(checkout, "write").assert_outcomes(passed=5, failed=1, skipped=1)
    assert outcomes(checkout.path)["test_many"] == "failed"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sum([1, 1]) == 2", "True", "test_one: passed of"),
        ("def test_one():", "@pytest.mark.skip\ndef test_one():", "test_one: skipped of"),
        ("assert sum([1, 1]) == 2", 'pytest.skip("not today")', "test_one: skipped of"),
    ],
)
def test_a_run_that_says_something_else_is_refused(
    checkout: pytest.Pytester, old: str, new: str, said: str
) -> None:
    run(checkout, "write")
    written = (checkout.path / RESULTS).read_bytes()
    rewrite(checkout, TESTS.replace(old, new))
    refused = run(checkout, "check")
    assert refused.ret == 1
    refused.stdout.fnmatch_lines([f"*{said}*", "*run `make test` and commit*"])
    assert (checkout.path / RESULTS).read_bytes() == written


def test_a_test_that_no_longer_runs_is_refused(checkout: pytest.Pytester) -> None:
    run(checkout, "write")
    rewrite(
        checkout, TESTS.replace("import pytest\n", "import pytest\npytest.importorskip('no_x')\n")
    )
    (checkout.path / "tests/test_b.py").write_text("def test_b(): assert not []\n", "utf-8")
    refused = run(checkout, "check")
    assert refused.ret == 1
    refused.stdout.fnmatch_lines(["*test_one: did not run here"])
    run(checkout, "write")
    assert outcomes(checkout.path)["test_one"] == "passed"  # here nothing says otherwise


def test_remarks_change_nothing(checkout: pytest.Pytester) -> None:
    run(checkout, "write")
    rewrite(checkout, TESTS.replace("def test_one():", "def test_one():\n    # Why.\n    'What.'"))
    assert run(checkout, "check").ret == 0


def test_a_machine_without_a_tool_does_not_forget_one_that_had_it(
    checkout: pytest.Pytester,
) -> None:
    run(checkout, "write")
    path = checkout.path / RESULTS
    path.write_text(path.read_text("utf-8").replace("skipped", "passed"), encoding="utf-8")
    run(checkout, "write")
    assert outcomes(checkout.path)["test_tool"] == "passed"
    rewrite(checkout, TESTS.replace("assert tool", "assert tool()"))
    run(checkout, "write")
    assert outcomes(checkout.path)["test_tool"] == "skipped"


def test_an_interrupted_run_writes_nothing(checkout: pytest.Pytester) -> None:
    rewrite(checkout, TESTS + "\ndef test_z():\n    pytest.exit('enough')\n")
    run(checkout, "write")
    assert read_results(checkout.path) == {}
