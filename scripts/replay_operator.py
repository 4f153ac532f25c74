"""Runs every command of docs/operator.md in a fresh clone; status, seconds and output hash of each.

    python scripts/replay_operator.py [--gpu] [--only TEXT] [--list]

The commands are read from the page itself, so page and replay cannot differ. The CPU part is the
table of "A machine without a GPU", the GPU part the steps of "A GPU machine". Writes
reports/operator_replay_cpu.log or reports/operator_replay_gpu.log beside the page it read.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "operator.md"
SECTIONS = {False: "## A machine without a GPU", True: "## A GPU machine"}
LONGEST = 4 * 3600


@dataclass(frozen=True)
class Replayed:
    """One command and what became of it."""

    command: str
    status: int
    seconds: float
    digest: str

    def line(self) -> str:
        """Of the log."""
        word = "ok" if self.status == 0 else f"failed {self.status}"
        return f"{word}\t{self.seconds:.1f} s\tsha256:{self.digest[:16]}\t{self.command}"


def commands_of(page: str, is_gpu: bool) -> list[str]:
    """The second column of the section's table: what stands between backticks."""
    section = page.split(SECTIONS[is_gpu], 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    found = [re.search(r"`([^`]+)`", row.split("|")[2]) for row in rows[2:]]
    return [match.group(1) for match in found if match]


def run(command: str, folder: Path, environment: dict[str, str]) -> Replayed:
    """One command by bash, its output hashed."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LONGEST,
            check=False,
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, output = 124, late.stdout or b""
    digest = hashlib.sha256(output).hexdigest()
    return Replayed(command, status, time.monotonic() - started, digest)


def replay(commands: Sequence[str], log: Path) -> bool:
    """All of them in one clone; the log is written as it goes."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    is_ok = True
    with TemporaryDirectory() as scratch, log.open("w", encoding="utf-8") as out:
        clone = Path(scratch) / "aerie"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        bins = f"{clone / '.venv' / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": bins, "OUT": "out", "COMMIT": commit}
        out.write(f"commit {commit}\n")
        for command in commands:
            done = run(command, clone, environment)
            print(done.line(), file=out, flush=True)
            print(done.line(), flush=True)
            is_ok = is_ok and done.status == 0
    return is_ok


def main() -> int:
    """Parse, choose, replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="the GPU part, on a GPU machine")
    parser.add_argument("--only", default="", help="commands that hold this text")
    parser.add_argument("--list", action="store_true", help="print the commands, run none")
    options = parser.parse_args()
    every = commands_of(PAGE.read_text("utf-8"), options.gpu)
    chosen = [command for command in every if options.only in command]
    if options.list:
        print("\n".join(chosen))
        return 0
    name = "gpu" if options.gpu else "cpu"
    return 0 if replay(chosen, ROOT / "reports" / f"operator_replay_{name}.log") else 1


if __name__ == "__main__":
    sys.exit(main())
