"""The replay runs what the operator's page says, and says what became of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from scripts.replay_operator import PAGE, ROOT, commands_of, run, with_line

ENVIRONMENT = {**os.environ, "COMMIT": "f" * 40}


def test_every_row_of_the_page_is_a_command() -> None:
    page = PAGE.read_text("utf-8")
    cpu, gpu = commands_of(page, False), commands_of(page, True)
    for command in ("make demo", "make test", "aerie gates", "aerie fpga sim", "aerie report"):
        assert command in cpu
    assert len(gpu) == 7 and all("$COMMIT" in command for command in gpu)
    section = page.split("## A machine without a GPU")[1].split("\n## ")[0]
    assert len(cpu) == sum(line.startswith("|") for line in section.splitlines()) - 2


def test_every_line_of_a_log_is_a_command_of_the_page_that_ended_well() -> None:
    page = PAGE.read_text("utf-8")
    for name, is_gpu in (("cpu", False), ("gpu", True)):
        log = ROOT / "reports" / f"operator_replay_{name}.log"
        lines = log.read_text("utf-8").splitlines() if log.is_file() else []
        every = commands_of(page, is_gpu)
        commands = [line.rsplit("\t", 1)[1] for line in lines]
        assert commands == [command for command in every if command in commands]
        assert all(line.startswith("ok\t") for line in lines)


def test_status_and_hash_of_a_command(tmp_path: Path) -> None:
    done = run("echo one; exit 3", tmp_path, ENVIRONMENT, 60)
    assert (done.status, done.digest) == (3, hashlib.sha256(b"one\n").hexdigest())
    assert done.line().startswith("failed 3\t")
    late = run("echo one; sleep 60 & wait", tmp_path, ENVIRONMENT, 0.5)
    assert (late.digest, late.seconds < 30) == (done.digest, True)
    assert late.line().startswith("stopped at its limit\t")


def test_a_replay_in_pieces_keeps_the_order_of_the_page(tmp_path: Path) -> None:
    log = tmp_path / "replay.log"
    for line in ("ok\ttwo", "failed 1\tone", "ok\tgone", "ok\tone"):
        with_line(log, ("one", "two"), line)
    assert log.read_text("utf-8") == "ok\tone\nok\ttwo\n"


def test_a_checkout_without_git_is_copied_and_must_name_its_commit(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    (bare / "scripts").mkdir(parents=True)
    (bare / "docs").mkdir()
    (bare / "reports/raw").mkdir(parents=True)
    (bare / "scripts" / "replay_operator.py").write_bytes(
        (ROOT / "scripts" / "replay_operator.py").read_bytes()
    )
    rows = "| step | command |\n|---|---|\n| 1 | `echo $COMMIT $OUT; test ! -e .git` |\n"
    (bare / "docs" / "operator.md").write_text(f"## A GPU machine\n{rows}", "utf-8")
    command = [sys.executable, "scripts/replay_operator.py", "--gpu"]
    nameless = {key: value for key, value in os.environ.items() if key not in ("COMMIT", "OUT")}
    refused = subprocess.run(command, cwd=bare, env=nameless, capture_output=True, text=True)
    assert refused.returncode and "COMMIT=" in refused.stderr
    subprocess.run(command, cwd=bare, env={**nameless, "COMMIT": "f" * 40}, check=True)
    told = hashlib.sha256(f"{'f' * 40} out\n".encode()).hexdigest()[:16]
    log = (bare / "reports" / "operator_replay_gpu.log").read_text("utf-8")
    assert log.startswith("ok\t") and f"sha256:{told}\tcommit ffffffffff\t" in log
    part = [*command, "--stages", "&& echo more"]
    subprocess.run(part, cwd=bare, env={**nameless, "COMMIT": "f" * 40}, check=True)
    log = (bare / "reports" / "operator_replay_gpu.log").read_text("utf-8")
    assert told not in log and "stages && echo more only\techo $COMMIT" in log
