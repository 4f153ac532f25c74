"""The scorecard's rules on small checkouts made here, and the rows of this one."""

from __future__ import annotations

import csv
import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.gates.gate import Verdict
from aerie.bench.report.checks import Evidence, judge
from aerie.bench.report.origin import origin_of
from aerie.bench.report.pages import MANIFEST, evidence_files
from aerie.bench.report.plots import stamp, stamp_of
from aerie.bench.report.rows import Artifact, Check, Row, read_artifacts, read_sections
from aerie.bench.report.traffic import effective, traffic
from aerie.bench.report.write import Judges, make, missing_review
from aerie.errors import UsageError
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
    write(tmp_path / "tests/unit/test_one.py", "def test_that() -> None: ...\n")
    return tmp_path


def evidence(root: Path, gates: tuple[Verdict, ...] = (), **parity: str) -> Evidence:
    return Evidence(root, [Artifact("reports/*", "aerie measure", "measured")], gates, parity)


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
        (record("lost", "at_least", 0), "fail", "found None"),
        (record("absent", "equals", 0), "open", "no field absent"),
        (record("ok", "equals", True, "reports/unsigned.json"), "open", "names no commit"),
        (record("ok", "equals", True, "reports/none.json"), "open", "is missing"),
        (Check("file", "reports/signed.json"), "pass", ""),
        (Check("file", "reports/unsigned.json"), "open", "names no commit"),
        (Check("test", "tests/unit/test_one.py::test_that"), "pass", ""),
        (Check("test", "tests/unit/test_one.py::test_tha"), "open", "no test"),
        (Check("test", "tests/gpu/test_one.py::test_that"), "open", "on a GPU only"),
        (Check("parity", "hls"), "fail", "no parity matrix was read"),
        (Check("gate", "micro_*"), "open", "no gate micro_*"),
    ],
)
def test_checks(checkout: Path, check: Check, status: str, said: str) -> None:
    judged = judge(Row("1", "it holds", (check,)), evidence(checkout))
    assert judged.status == status
    assert said in " ".join(judged.notes)


def gate(name: str, value: float | None, passed: bool) -> Verdict:
    return Verdict(
        name, value, 2.0, None, "at_least", passed, "signed.json", "" if passed else "too low"
    )


def test_one_failing_gate_fails_the_row(checkout: Path) -> None:
    row = Row("1", "fast", (Check("gate", "micro_*"),), kernels="triton")
    good, bad = gate("micro_a", 2.5, True), gate("micro_b", 1.5, False)
    assert judge(row, evidence(checkout, (good,), triton="")).status == "pass"
    assert judge(row, evidence(checkout, (gate("micro_a", None, False),))).status == "open"
    judged = judge(row, evidence(checkout, (good, bad), triton=""))
    assert judged.status == "fail"
    assert judged.notes == ("micro_b: 1.5 (≥ 2), too low",)


def test_speed_needs_parity_of_the_same_sources(checkout: Path) -> None:
    row = Row("1", "fast", (Check("gate", "micro_*"),), kernels="triton")
    found = (gate("micro_a", 2.5, True),)
    judged = judge(row, evidence(checkout, found, triton="it was made with other sources"))
    assert judged.status == "fail"
    assert "other sources" in judged.notes[0]
    assert judge(row, evidence(checkout, found)).status == "fail"


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
    write(tmp_path / "scorecard/1.toml", f'title = "t"\nabout = "a"\n{rows}\n')
    with pytest.raises(UsageError, match=re.escape(said)):
        read_sections(tmp_path)


def small(root: Path, checks: str) -> None:
    rows = f"{ROW}kill = true\nchecks = [{checks}]\n"
    write(root / "scorecard/1.toml", f'title = "t"\nabout = "a"\n{rows}')
    write(
        root / "scorecard/artifacts.toml",
        '[[artifact]]\npath = "reports/*"\ncommand = "aerie x"\nkind = "measured"\n',
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
        "reports/scorecard.md",
        "reports/manifest.csv",
    )
    assert not (checkout / "reports/scorecard.md").exists()
    made = make(checkout, judges, writes=True)
    assert made.unsigned == ("reports/scorecard.md", "reports/unsigned.json")
    assert make(checkout, judges, writes=False).written == ()
    manifest = (checkout / "reports/manifest.csv").read_text("utf-8").splitlines()
    rows = {row["file"]: row for row in csv.DictReader(manifest)}
    assert rows["reports/signed.json"]["commit"] == COMMIT
    assert rows["reports/unsigned.json"]["commit"] == "unknown"
    write(checkout / "reports/signed.json", json.dumps({"ratio": 9}))
    assert "reports/manifest.csv" in make(checkout, judges, writes=False).written


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
    stamp(path, "0" * 64)
    assert stamp_of(path) == "0" * 64
    assert image.imread(path).shape[:2] == (2, 2)


# Every promise of the seeds: numbered items, rows of the mapping, work packages, milestones, risks.
LIST = {
    "0.1": 7, "0.2": 2, "0.3": 2, "1": 6, "2": 6, "3": 5, "4": 5, "5": 4, "6": 3, "7": 3, "8": 3
}  # fmt: skip
PLAN = {"1": 4, "3": 3, "4": 3, "5": 4}


def test_every_promise_has_a_row() -> None:
    ids = {row.id for section in read_sections(ROOT) for row in section.rows}
    wanted = {f"WP{n}" for n in range(8)} | {f"M{n}" for n in range(5)}
    wanted |= {f"risk {n}" for n in range(1, 5)} | {f"map {n}" for n in range(1, 9)}
    wanted |= {f"003 {part}.{n}" for part, count in LIST.items() for n in range(1, count + 1)}
    wanted |= {f"004 {part}.{n}" for part, count in PLAN.items() for n in range(1, count + 1)}
    assert wanted <= ids, sorted(wanted - ids)
    assert len([name for name in ids if name.startswith("004 6 ")]) == 5


def test_every_file_of_evidence_has_its_command() -> None:
    """A new report needs a row in scorecard/artifacts.toml: what writes it, and of what kind."""
    artifacts = read_artifacts(ROOT)
    names = evidence_files(ROOT)
    strange = [n for n in names if not any(fnmatch(n, known.path) for known in artifacts)]
    assert set(strange) <= {MANIFEST}, strange


def test_named_tests_exist() -> None:
    found = Evidence(ROOT, read_artifacts(ROOT), (), {})
    checks = [c for s in read_sections(ROOT) for row in s.rows for c in row.checks]
    rows = [Row(c.target, "", (c,)) for c in checks if c.subject == "test"]
    absent = [row.id for row in rows if judge(row, found).status != "pass"]
    assert not absent, absent


def test_the_operator_page_names_what_exists() -> None:
    """Every command, script, contract and page that the operator is told of is there."""
    from typer.main import get_command

    from aerie.cli.main import app

    text = (ROOT / "docs/operator.md").read_text("utf-8")
    for path in set(
        re.findall(r"\b(?:scripts|contracts|gates|docs|tests|examples)/[\w./-]*\w", text)
    ):
        assert (ROOT / path).exists(), path
    commands: Any = get_command(app).commands
    for words in re.findall(r"\baerie ([a-z-]+)(?: ([a-z][a-z-]*))?", text):
        assert words[0] in commands, words
        group = getattr(commands[words[0]], "commands", None)
        if group and words[1]:
            assert words[1] in group, words


def traffic_row(policy: str, part: str, what: str, size: int, tokens: float) -> dict[str, str]:
    named = {"context": "1024", "batch": "1", "policy": policy, "part": part, "what": what}
    return {
        **named,
        "bytes_per_token": str(size),
        "tokens_per_round": str(tokens),
        "commit": COMMIT,
    }


def test_traffic_before_and_after() -> None:
    rows = [
        traffic_row("plain", "linear", "weights", 1000, 1.0),
        traffic_row("plain", "attention", "kv", 100, 1.0),
        traffic_row("plain", "norm", "activations", 8, 1.0),
        traffic_row("tree3", "linear", "weights", 400, 3.0),
        traffic_row("tree3", "attention", "kv", 50, 3.0),
    ]
    plain, tree = effective(rows)
    assert (plain.before, plain.after) == (1000 + 300 + 46, 1108)
    assert (tree.before, tree.after) == (400 + 150, 450)
    assert tree.around_weights == 3.0
    found = traffic(rows)
    assert (found["fusion"], found["fusion_in_place"]) == (round(550 / 450, 3), 1.0)
    point = found["points"][1]
    assert (point["speculation"], point["product"]) == (round(1108 / 450, 3), round(1346 / 450, 3))
    assert (found["kind"], found["provenance"]["commit"]) == ("modelled", COMMIT)
