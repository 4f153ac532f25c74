"""The replay runs what the operator's page says, and says what became of it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from scripts.replay_operator import PAGE, commands_of, run


def test_every_row_of_the_page_is_a_command() -> None:
    page = PAGE.read_text("utf-8")
    cpu, gpu = commands_of(page, False), commands_of(page, True)
    for command in ("make demo", "make test", "aerie gates", "aerie fpga sim", "aerie report"):
        assert command in cpu
    assert len(gpu) == 7 and all("$COMMIT" in command for command in gpu)
    section = page.split("## A machine without a GPU")[1].split("\n## ")[0]
    assert len(cpu) == sum(line.startswith("|") for line in section.splitlines()) - 2


def test_status_and_hash_of_a_command(tmp_path: Path) -> None:
    done = run("echo one; exit 3", tmp_path, dict(os.environ))
    assert (done.status, done.digest) == (3, hashlib.sha256(b"one\n").hexdigest())
    assert done.line().startswith("failed 3\t")
