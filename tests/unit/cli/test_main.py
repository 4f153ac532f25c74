"""What the command line does around its commands: version, help, errors, and a closed pipe."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie import __version__
from aerie.assemble import core
from aerie.cli import main
from aerie.costs.table import CostTable, load_costs

DEAR = Path(__file__).parents[2] / "data" / "costs_dear.json"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["aerie", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"aerie {__version__}\n"


def test_nothing_said_is_answered_with_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 2
    said = capsys.readouterr()
    assert "generate" in said.out + said.err and "aerie:" not in said.err


@pytest.mark.parametrize("command", [("report",), ("gates",), ("gates", "run", "micro")])
def test_outside_a_checkout_it_says_what_to_do(
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "in the root of a clone" in said or "evidence/contracts/h200.toml" in said


def test_a_reader_that_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(main, "app", broken)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert run(monkeypatch) == 1


def test_what_an_encoding_cannot_show_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's text may have any character; a pipe may be ASCII, a console a code page."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(main, "app", lambda **_: print("é 日 😀", flush=True))
    assert run(monkeypatch) == 0
    assert written.getvalue() == rb"\xe9 \u65e5 \U0001f600" + b"\n"


def test_our_own_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(**_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main, "app", wrong)
    with pytest.raises(ZeroDivisionError):
        main.main()


def test_generate_says_why_nothing_was_drafted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measure(make: object, grid: object, record: Any, progress: object) -> CostTable:
        table = replace(load_costs(DEAR), provenance=record)
        return replace(table, draft=table.draft.scaled(1e3), extend=table.extend.scaled(1e3))

    monkeypatch.setenv("AERIE_CACHE", str(tmp_path))
    monkeypatch.setattr(core, "measure_costs", measure)
    options = ("--device", "cpu", "--max-new-tokens", "3", "--json")
    assert run(monkeypatch, "generate", "x = ", *options) == 0
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    assert found["num_drafts"] == 0
    assert "it breaks even at" in found["policy_reason"]
    assert found["policy_reason"] in said.err
