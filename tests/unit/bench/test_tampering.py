"""Trials on a copy of this checkout: what must not pass unnoticed, and what must change nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerie.bench.gates.data import HISTORY, WHOLE, read_history
from aerie.bench.record import open_rows
from aerie.bench.report.rows import (
    PASSED,
    RESULTS,
    Result,
    code_of_test,
    find_test,
)
from aerie.bench.report.write import Report, make
from aerie.cli.report import MATRIX, judges
from aerie.parity.matrix import contract_hash, sources_hash
from aerie.sources import hash_parts, read_package
from tests.laws.tree import ROOT
from tests.results import named_tests, render_results

LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "shared")
ATTENTION = "src/aerie/attention/pytorch.py"
KERNEL = "src/aerie/kernels/triton_gpu/walk.py"
MASK = "tests/parity/test_oracle_mask.py"
RAW = "reports/h200_baseline_raw.csv.xz"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout, as if all was measured and all tests had passed with today's sources."""
    root = tmp_path_factory.mktemp("copy") / "checkout"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT), copy_function=link)
    now = hash_parts(read_package(root / "src/aerie"))
    commits = {commit: {**now, WHOLE: then[WHOLE]} for commit, then in read_history(root).items()}
    replace_file(root / HISTORY, json.dumps({"commits": commits}))
    matrix = json.loads((root / MATRIX).read_text("utf-8"))
    matrix["contract_sha256"] = contract_hash()
    for column in matrix["columns"]:
        column["sources_sha256"] = sources_hash(column["backend"])
    replace_file(root / MATRIX, json.dumps(matrix))
    found = {}
    for name in named_tests(root):
        function = find_test(root, name)
        assert function is not None, name
        found[name] = Result(PASSED, code_of_test(function))
    replace_file(root / RESULTS, render_results({"make test": found}))
    make(root, judges(root), writes=True)
    return root


def link(source: str, target: str) -> None:
    """A link where nothing is written, a copy where `aerie report` may write."""
    is_written = "/reports/" in source or source.endswith(("/README.md", "/docs/measured.md"))
    (shutil.copyfile if is_written else os.symlink)(source, target)


def replace_file(path: Path, text: str) -> None:
    """Never through a link: that would write into this checkout."""
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


@contextmanager
def tampered(path: Path, edit: Callable[[str], str | None]) -> Iterator[None]:
    """The file edited, or gone where the edit returns None; afterwards as it was."""
    before, text = path.read_bytes(), unpacked(path)
    edited = edit(text)
    assert edited != text, f"the trial changed nothing in {path.name}"
    path.unlink()
    if edited is not None:
        with open_rows(path, "wt") as stream:
            stream.write(edited)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(before)


def unpacked(path: Path) -> str:
    with open_rows(path, "rt") as stream:
        return stream.read()


def look(root: Path) -> Report:
    return make(root, judges(root), writes=False)


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


def empty(name: str) -> Callable[[str], str]:
    """The test keeps its name and signature, and says nothing any more."""

    def edit(text: str) -> str:
        start = text.index(f"def {name}(")
        end = text.index(" -> None:\n", start) + len(" -> None:\n")
        rest = text[end:].partition("\n\n\n")[2]
        return f"{text[:end]}    pass\n\n\n{rest}"

    return edit


def stale_parts(report: Report) -> set[str]:
    return {part for one in report.judged for part in one.changed}


def test_a_fresh_copy_is_fresh(checkout: Path) -> None:
    found = look(checkout)
    assert found.written == () and found.failed == []
    assert not stale_parts(found) & {"attention", "kernels/triton_gpu", "engine"}


def test_a_comment_changes_nothing(checkout: Path) -> None:
    def remark(text: str) -> str:
        return text + "\n# A remark.\n"

    with (
        tampered(checkout / ATTENTION, remark),
        tampered(checkout / KERNEL, remark),
        tampered(checkout / MASK, remark),
    ):
        assert look(checkout).written == ()


def test_an_edited_raw_value_is_noticed(checkout: Path) -> None:
    """One run made 1 % faster: no floor is near, but pages and manifest are of other data."""
    row = next(line for line in unpacked(checkout / RAW).splitlines() if ",spec-3," in line)
    seconds = row.split(",")[20]
    edited = row.replace(f",{seconds},", f",{float(seconds) * 0.99:.6f},", 1)
    with tampered(checkout / RAW, swap(row, edited)):
        found = look(checkout)
    assert "reports/manifest.csv" in set(found.written) - set(found.aged)


def test_an_emptied_or_renamed_test_fails_its_rows(checkout: Path) -> None:
    name = "test_packed_mask_bit_by_bit"
    for edit in (empty(name), swap(f"def {name}(", f"def {name}_no_more(")):
        with tampered(checkout / MASK, edit):
            found = look(checkout)
        assert "masks that show too much" in {one.row.id for one in found.failed}
    with tampered(checkout / MASK, swap("    assert ", "    assert 0 or ")):
        found = look(checkout)
    assert found.failed == [] and found.aged == found.written != ()


@pytest.mark.parametrize(
    ("path", "old", "new", "part"),
    [
        (ATTENTION, "torch.softmax(", "torch.log_softmax(", "attention"),
        (KERNEL, "!= ", "== ", "kernels/triton_gpu"),
    ],
)
def test_changed_sources_make_rows_stale_not_red(
    checkout: Path, path: str, old: str, new: str, part: str
) -> None:
    with tampered(checkout / path, swap(old, new)):
        found = look(checkout)
    assert part in stale_parts(found) and found.failed == []
    assert found.written == found.aged and "reports/scorecard.md" in found.aged


def test_a_removed_report_is_noticed(checkout: Path) -> None:
    with tampered(checkout / "reports/round_speed.json", lambda text: None):
        found = look(checkout)
    assert "reports/manifest.csv" in set(found.written) - set(found.aged)
    assert "host only orchestrates" in {one.row.id for one in found.judged if one.status == "open"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "edit", "code"),
    [
        (ATTENTION, lambda text: text + "# A remark.\n", 0),
        (ATTENTION, swap("torch.softmax(", "torch.log_softmax("), 1),
        ("src/aerie/kernels/pytorch/walk.py", lambda text: text + "MORE = 1\n", 1),
        (MASK, empty("test_packed_mask_bit_by_bit"), 1),
        ("reports/round_speed.json", lambda text: None, 1),
        ("reports/raw/attention_checks_h200.json", swap('"ok": true', '"ok": false'), 1),
    ],
)
def test_the_command_says_so(
    checkout: Path, path: str, edit: Callable[[str], str | None], code: int
) -> None:
    """As people run it, with the copy's own sources."""
    command = [sys.executable, "-m", "aerie", "report", "--check"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    with tampered(checkout / path, edit):
        run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert run.returncode == code, run.stdout + run.stderr
