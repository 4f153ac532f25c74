"""The scorecard's rules on small checkouts made here, and the rows of this one."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aerie.bench.gates.data import WHOLE, Ages
from aerie.bench.gates.gate import Verdict, read_gates
from aerie.bench.plots import PLOTS, stamp_of
from aerie.bench.report.checks import Evidence, Parity, judge
from aerie.bench.report.origin import origin_of
from aerie.bench.report.pages import OLDER, evidence_files, without_ages
from aerie.bench.report.rows import (
    Artifact,
    Check,
    Result,
    Row,
    code_of_test,
    find_test,
    read_artifacts,
    read_sections,
)
from aerie.bench.report.write import Judges, make, missing_review
from aerie.cli.main import app
from aerie.errors import UsageError
from aerie.kernels.registry import BACKENDS
from tests.laws.tree import ROOT

COMMIT = "0123456789abcdef"
RECORD = {
    "ratio": 2.5,
    "ok": True,
    "runs": [{"ms": 1.0, "n": 4}, {"ms": 3.0, "n": 8}],
    "lost": None,
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    signed = {**RECORD, "provenance": {"commit": COMMIT}}
    write(tmp_path / "reports/signed.json", json.dumps(signed))
    write(tmp_path / "reports/unsigned.json", json.dumps(RECORD))
    write(tmp_path / TESTS, SOURCE)
    return tmp_path


TESTS = "tests/unit/test_one.py"
NAMES = (
    "test_that",
    "test_failed",
    "test_skipped",
    "test_changed",
    "test_half",
    "test_returns_at_once",
)
SOURCE = "".join(f"def {name}() -> None:\n    assert 1 + 1 == 2\n\n\n" for name in NAMES) + (
    "def test_new() -> None:\n    assert 1 + 1 == 2\n\n\n"
    'def test_emptied() -> None:\n    """It said much."""\n    assert True\n'
)


def results(root: Path) -> dict[str, dict[str, Result]]:
    """A run of the tests above, after which some of them were edited."""
    outcomes = {"test_failed": "failed", "test_skipped": "skipped"}
    found = {}
    for name in NAMES:
        function = find_test(root, f"{TESTS}::{name}")
        assert function is not None
        found[f"{TESTS}::{name}"] = Result(outcomes.get(name, "passed"), code_of_test(function))
    later = SOURCE.replace(
        "def test_changed() -> None:\n", "def test_changed() -> None:\n    f()\n"
    )
    later = later.replace("def test_that() -> None:\n", "def test_that() -> None:\n    # Why.\n")
    at_once = "def test_returns_at_once() -> None:\n"
    write(root / TESTS, later.replace(at_once, f"{at_once}    return\n"))
    name = f"{TESTS}::test_half"
    return {"make test": found, "make slow": {name: Result("failed", found[name].code)}}


NOW = {"attention": "a", "kernels": "k"}
THEN = {WHOLE: "0" * 64, "attention": "a", "kernels": "earlier"}


def evidence(root: Path, gates: tuple[Verdict, ...] = (), **parity: Parity) -> Evidence:
    artifacts = [
        Artifact("reports/signed.json", "aerie measure", "measured", sources="gpu attention"),
        Artifact("reports/*", "aerie measure", "measured"),
    ]
    return Evidence(root, artifacts, gates, parity, Ages(NOW, {COMMIT: THEN}), results(root))


def record(field: str, bound: str, value: object, path: str = "reports/signed.json") -> Check:
    return Check("record", path, field, bound, value)


@pytest.mark.parametrize(
    ("check", "status", "said"),
    [
        (record("ratio", "at_least", 2.0), "pass", "ratio 2.5"),
        (record("ratio", "at_least", 3.0), "fail", "found 2.5"),
        (record("runs.*.ms", "at_most", 2.0), "fail", "found 3.0"),
        (record("runs.*.ms", "at_most", 3.0), "pass", "3.0"),
        (record("runs.n=4.ms", "at_most", 2.0), "pass", "1.0"),
        (record("runs.1.ms", "equals", 3.0), "pass", "3.0"),
        (record("runs.n=5.ms", "at_most", 2.0), "open", "no field"),
        (record("ok", "equals", True), "pass", ""),
        (record("ok", "equals", 1), "fail", "found True"),
        (record("lost", "at_least", 0), "open", "was not measured at 1 of 1"),
        (record("absent", "equals", 0), "open", "no field absent"),
        (record("ok", "equals", True, "reports/unsigned.json"), "open", "names no commit"),
        (record("ok", "equals", True, "reports/none.json"), "open", "is missing"),
        (Check("file", "reports/signed.json"), "pass", ""),
        (Check("file", "reports/unsigned.json"), "open", "names no commit"),
        (Check("test", f"{TESTS}::test_that"), "pass", ""),
        (Check("test", f"{TESTS}::test_tha"), "fail", "no test"),
        (Check("test", f"{TESTS}::test_failed"), "fail", "test_failed failed"),
        (Check("test", f"{TESTS}::test_skipped"), "fail", "test_skipped skipped"),
        (Check("test", f"{TESTS}::test_half"), "fail", "test_half failed"),
        (Check("test", f"{TESTS}::test_emptied"), "fail", "asserts nothing"),
        (Check("test", f"{TESTS}::test_returns_at_once"), "fail", "asserts nothing"),
        (Check("test", f"{TESTS}::test_changed"), "stale", "changed: run the tests again"),
        (Check("test", f"{TESTS}::test_new"), "stale", "new: run the tests again"),
        (Check("test", "tests/gpu/test_one.py::test_that"), "open", "on a GPU only"),
        (Check("parity", "hls"), "fail", "no parity matrix was read"),
        (Check("gate", "micro_*"), "open", "no gate micro_*"),
    ],
)
def test_checks(checkout: Path, check: Check, status: str, said: str) -> None:
    judged = judge(Row("1", "it holds", (check,)), evidence(checkout))
    assert judged.status == status
    assert said in " ".join((*judged.notes, *judged.changed))


def gate(name: str, value: float | None, passed: bool) -> Verdict:
    return Verdict(
        name, value, 2.0, None, "at_least", passed, "signed.json", "" if passed else "too low"
    )


def test_one_failing_gate_fails_the_row(checkout: Path) -> None:
    row = Row("1", "fast", (Check("gate", "micro_*"),), kernels="triton")
    good, bad = gate("micro_a", 2.5, True), gate("micro_b", 1.5, False)
    assert judge(row, evidence(checkout, (good,), triton=Parity())).status == "pass"
    assert judge(row, evidence(checkout, (gate("micro_a", None, False),))).status == "open"
    judged = judge(row, evidence(checkout, (good, bad), triton=Parity()))
    assert judged.status == "fail"
    assert judged.notes == ("micro_b: 1.5 (≥ 2), too low",)


def test_speed_needs_parity(checkout: Path) -> None:
    row = Row("1", "fast", (Check("gate", "micro_*"),), kernels="triton")
    found = (gate("micro_a", 2.5, True),)
    broken = judge(row, evidence(checkout, found, triton=Parity("2 cases of the matrix fail")))
    assert broken.status == "fail" and "2 cases" in broken.notes[0]
    assert judge(row, evidence(checkout, found)).status == "fail"
    older = judge(row, evidence(checkout, found, triton=Parity("", "it has other sources")))
    assert older.status == "stale"
    assert older.changed == ("parity of triton: it has other sources",)


def test_older_sources_are_told_beside_a_figure_that_passes(checkout: Path) -> None:
    good, bad = record("ratio", "at_least", 2.0), record("ratio", "at_least", 3.0)
    fresh = evidence(checkout)
    older = replace(fresh, ages=Ages({**NOW, "attention": "b"}, fresh.ages.commits))
    assert judge(Row("1", "it holds", (good,)), fresh).status == "pass"
    stale = judge(Row("1", "it holds", (good,)), older)
    assert (stale.status, stale.changed) == ("stale", ("attention",))
    assert judge(Row("1", "it holds", (bad,)), older).status == "fail"


def test_what_is_missing_keeps_a_row_open(checkout: Path) -> None:
    good = Check("file", "reports/signed.json")
    assert judge(Row("1", "half", (good,), missing="the rest"), evidence(checkout)).status == "open"
    assert judge(Row("1", "nothing"), evidence(checkout)).status == "open"
    assert judge(Row("1", "no", not_needed="because"), evidence(checkout)).notes == ("because",)


@pytest.mark.parametrize(
    ("name", "text", "commit"),
    [
        ("a.csv", "commit,x\nabcdef012,1\nabcdef012,2\n", "abcdef012"),
        ("a.csv", "commit,x\nabcdef012,1\n,2\n", ""),
        ("a.csv", "# commit: abcdef012\nx\n1\n", "abcdef012"),
        ("a.csv", "x\n1\n", ""),
        ("a.log", "provenance: {'commit': 'abcdef012', 'x': 1}", "abcdef012"),
        ("a.md", "made at commit `abcdef012`.", "abcdef012"),
        ("a.txt", "commit unknown", ""),
        ("a.json", '{"provenance": {"commit": "unknown"}}', ""),
        ("a.json", '{"commit": "abcdef012"}', "abcdef012"),
    ],
)
def test_origin(tmp_path: Path, name: str, text: str, commit: str) -> None:
    write(tmp_path / name, text)
    assert origin_of(tmp_path, name, []).commit == commit


def test_a_table_takes_the_origin_of_its_raw_data(checkout: Path) -> None:
    write(checkout / "reports/table.md", "no word about it")
    known = [Artifact("reports/table.md", "aerie report", "modelled", "reports/signed.json")]
    found = origin_of(checkout, "reports/table.md", known)
    assert (found.commit, found.command, found.kind) == (COMMIT, "aerie report", "modelled")


ROW = '[[row]]\nid = "1"\nwhat = "x"\n'


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROW + "chekcs = []", "unknown keys"),
        (ROW + 'checks = [{ file = "a", gate = "b" }]', "is no check"),
        (ROW + 'checks = [{ record = "a" }]', "only a record"),
        (ROW + 'checks = [{ file = "a", field = "b", equals = 1 }]', "only a record"),
        (ROW + 'checks = [{ record = "a", field = "b", above = 1 }]', "is no check"),
        (ROW + 'not_needed = "y"\nmissing = "z"', "is not needed and has checks"),
        (ROW + ROW, "the same id: 1"),
        ('[[row]]\nid = "1"', "what"),
    ],
)
def test_rows_are_read_strictly(tmp_path: Path, rows: str, said: str) -> None:
    write(tmp_path / "evidence/scorecard/1.toml", f'title = "t"\nabout = "a"\n{rows}\n')
    with pytest.raises(UsageError, match=re.escape(said)):
        read_sections(tmp_path)


def small(root: Path, checks: str, artifact: str = "") -> None:
    rows = f"{ROW}kill = true\nchecks = [{checks}]\n"
    write(root / "evidence/scorecard/1.toml", f'title = "t"\nabout = "a"\n{rows}')
    write(
        root / "evidence/scorecard/artifacts.toml",
        '[[artifact]]\npath = "reports/*"\ncommand = "aerie x"\nkind = "measured"\n' + artifact,
    )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this repository's own tables and pictures."""
    monkeypatch.setattr("aerie.bench.report.write.TABLES", ())
    monkeypatch.setattr("aerie.bench.report.write.PLOTS", ())


@pytest.mark.usefixtures("alone")
def test_stale_files_are_named_then_written(checkout: Path) -> None:
    small(checkout, '{ record = "reports/signed.json", field = "ratio", at_least = 2.0 }')
    judges = Judges((), {})
    assert make(checkout, judges, writes=False).written == (
        "reports/manifest.csv",
        "reports/scorecard.md",
    )
    assert not (checkout / "reports/scorecard.md").exists()
    made = make(checkout, judges, writes=True)
    assert made.unsigned == ("reports/unsigned.json",)
    assert make(checkout, judges, writes=False).written == ()
    manifest = (checkout / "reports/manifest.csv").read_text("utf-8").splitlines()
    rows = {row["file"]: row for row in csv.DictReader(manifest)}
    assert rows["reports/signed.json"]["commit"] == COMMIT
    assert rows["reports/unsigned.json"]["commit"] == "unknown"
    write(checkout / "reports/signed.json", json.dumps({"ratio": 9}))
    assert "reports/manifest.csv" in make(checkout, judges, writes=False).written


@pytest.mark.usefixtures("alone")
def test_a_page_that_only_lacks_ages_is_told_apart(checkout: Path) -> None:
    checks = '{ record = "reports/signed.json", field = "ratio", at_least = 2.0 }'
    small(checkout, checks, 'sources = "gpu attention"')
    then = {COMMIT: {WHOLE: "", "attention": "a"}}
    make(checkout, Judges((), {}, ages=Ages({"attention": "a"}, then)), writes=True)
    fresh = (checkout / "reports/scorecard.md").read_text("utf-8")
    later = Judges((), {}, ages=Ages({"attention": "b"}, then))
    found = make(checkout, later, writes=False)
    assert found.written == found.aged == ("reports/scorecard.md",)
    make(checkout, later, writes=True)
    aged = (checkout / "reports/scorecard.md").read_text("utf-8")
    assert "**stale** (changed since: attention): ratio 2.5" in aged and "| t | 0 | 1 |" in aged
    assert without_ages(aged) == without_ages(fresh) == fresh
    table = "| gate | 2.5 | {} |\n\n{}![picture](a.png)\n"
    stale = table.format("stale", f"{OLDER} (changed since: attention, engine)\n\n")
    assert without_ages(stale) == table.format("pass", "")
    small(checkout, checks.replace("2.0", "2.1"), 'sources = "gpu attention"')
    assert make(checkout, later, writes=False).aged == ()


@pytest.mark.parametrize("floor", [2.0, 3.0])
@pytest.mark.usefixtures("alone")
def test_a_failing_row_is_an_exit_status(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, floor: float
) -> None:
    small(checkout, f'{{ record = "reports/signed.json", field = "ratio", at_least = {floor} }}')
    write(checkout / "reports/redesign_review.md", "reviewed")
    for folder in ("evidence/gates", "evidence/contracts"):
        write(checkout / folder / "a.toml", "")
    monkeypatch.chdir(checkout)
    monkeypatch.setattr("aerie.cli.report.judges", lambda root: Judges((), {}))
    for options in ((), ("--check",)):
        run = CliRunner().invoke(app, ["report", *options])
        assert run.exit_code == (floor > 2.5), run.output


@pytest.mark.usefixtures("alone")
def test_a_kill_criterion_asks_for_a_review(checkout: Path) -> None:
    small(checkout, '{ record = "reports/signed.json", field = "ratio", at_least = 3.0 }')
    made = make(checkout, Judges((), {}), writes=True)
    assert made.needs_review == ["1"]
    assert "write reports/redesign_review.md first" in missing_review(checkout, made)
    assert "1: HOLDS" in (checkout / "reports/scorecard.md").read_text("utf-8")
    write(checkout / "reports/redesign_review.md", "reviewed")
    assert missing_review(checkout, made) == ""


def test_a_picture_says_what_it_was_drawn_from(tmp_path: Path) -> None:
    from matplotlib import image

    path = tmp_path / "picture.png"
    image.imsave(path, [[0.0, 1.0], [1.0, 0.0]])
    assert stamp_of(path) == ""
    (plot,) = (plot for plot in PLOTS if plot.name == "h200_planner.png")
    shutil.copyfile(ROOT / "reports" / plot.raw, tmp_path / plot.raw)
    assert plot.is_stale(tmp_path)
    plot.redraw(tmp_path)
    assert not plot.is_stale(tmp_path)
    assert image.imread(tmp_path / plot.name).shape[:2] == (456, 1080)


def test_every_row_names_evidence_that_can_exist_or_says_why_not() -> None:
    rows = [row for section in read_sections(ROOT) for row in section.rows]
    assert not [row.id for row in rows if not (row.checks or row.missing or row.not_needed)]
    gates = [gate.name for gate in read_gates(ROOT / "evidence/gates")]
    backends = [info.name for info in BACKENDS]
    for row in rows:
        assert row.kernels in ("", *backends), row.id
        for check in row.checks:
            known = {"gate": gates, "parity": backends}.get(check.subject)
            assert known is None or any(fnmatch(name, check.target) for name in known), check


def test_every_file_of_evidence_has_its_command() -> None:
    """A new report needs a row in artifacts.toml: what writes it, and of what kind."""
    artifacts = read_artifacts(ROOT)
    names = evidence_files(ROOT)
    strange = [n for n in names if not any(fnmatch(n, known.path) for known in artifacts)]
    assert not strange, strange


def test_the_operator_page_names_what_exists() -> None:
    """Every command, script, contract and page that the operator is told of is there."""
    from typer.main import get_command

    text = (ROOT / "docs/operator.md").read_text("utf-8")
    for path in set(re.findall(r"\b(?:scripts|evidence|docs|tests|examples)/[\w./-]*\w", text)):
        assert (ROOT / path).exists(), path
    commands: Any = get_command(app).commands
    for words in re.findall(r"\baerie ([a-z-]+)(?: ([a-z][a-z-]*))?", text):
        assert words[0] in commands, words
        group = getattr(commands[words[0]], "commands", None)
        if group and words[1]:
            assert words[1] in group, words


def test_every_row_says_which_document_asked_for_it() -> None:
    """By a short name of docs/origin.md, the only page that names them; its words are its own."""
    page = (ROOT / "docs/origin.md").read_text("utf-8")
    known = set(re.findall(r"^\| (\w+) \| ", page, re.M))
    rows = [row for section in read_sections(ROOT) for row in section.rows]
    assert {row.origin.split()[0] for row in rows} <= known, known
    assert not [row.id for row in rows if re.search(r"\bWP\d|\b00[0-4] \d|\bseeds\b", row.what)]
