"""Runs every command of docs/operator.md in a fresh clone; status, seconds and output hash of each.

    python scripts/replay_operator.py [--gpu] [--only TEXT] [--into FOLDER] [--limit SECONDS]

The commands are read from the page itself, so page and replay cannot differ. The CPU part is the
table of "A machine without a GPU", the GPU part the steps of "A GPU machine". The log is
reports/operator_replay_cpu.log or _gpu.log beside the page that was read; a command that is run
again replaces its own line, so a replay may be done in pieces, in one clone that --into keeps.

A GPU machine has no git: there the checkout is copied instead of cloned, and its commit is what
COMMIT says. Steps write to $OUT as on the page ("out" in the clone where it is not set). Beyond
--limit a command is stopped, and its line says so. A script of the GPU part takes stages as its
last argument: --stages runs these alone, and the line names them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "operator.md"
SECTIONS = {False: "## A machine without a GPU", True: "## A GPU machine"}
LONGEST = 4 * 3600
STOPPED = 124
# What a checkout without git may hold that no archive of it does.
NOT_COPIED = shutil.ignore_patterns(".venv", "out", "build", "__pycache__", ".*_cache")


@dataclass(frozen=True)
class Replayed:
    """One command and what became of it."""

    command: str
    status: int
    seconds: float
    digest: str
    commit: str
    stages: str = ""

    def line(self) -> str:
        """Of the log."""
        words = {0: "ok", STOPPED: "stopped at its limit"}
        word = words.get(self.status, f"failed {self.status}")
        told = f"{word}\t{self.seconds:.1f} s\tsha256:{self.digest[:16]}"
        part = f", stages {self.stages} only" if self.stages else ""
        return f"{told}\tcommit {self.commit[:10]}{part}\t{self.command}"


def commands_of(page: str, is_gpu: bool) -> list[str]:
    """The second column of the section's table: what stands between backticks."""
    section = page.split(SECTIONS[is_gpu], 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    found = [re.search(r"`([^`]+)`", row.split("|")[2]) for row in rows[2:]]
    return [match.group(1) for match in found if match]


def run(command: str, folder: Path, environment: dict[str, str], limit: float) -> Replayed:
    """One command by bash, its output hashed; at its limit it ends with all that it started."""
    started = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status = STOPPED
    digest = hashlib.sha256(output).hexdigest()
    if status:
        print(output.decode(errors="replace")[-2000:], file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    return Replayed(command, status, seconds, digest, environment["COMMIT"])


def commit_of(root: Path) -> str:
    """Git's word, or COMMIT where there is no repository."""
    if (root / ".git").exists():
        asked = ["git", "rev-parse", "HEAD"]
        return subprocess.run(
            asked, cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
    if not os.environ.get("COMMIT"):
        sys.exit(
            f"{root} has no git: say which commit it is, as in COMMIT=<40 digits> {sys.argv[0]}"
        )
    return os.environ["COMMIT"]


def fresh(root: Path, into: Path) -> Path:
    """A clone of the repository, or a copy of a checkout without git; one that is there stays."""
    if into.exists():
        return into
    if (root / ".git").exists():
        subprocess.run(["git", "clone", "-q", str(root), str(into)], check=True)
    else:
        shutil.copytree(root, into, ignore=NOT_COPIED)
    return into


def with_line(log: Path, every: Sequence[str], line: str) -> None:
    """Put a line where the page has its command; lines of commands that have gone are dropped."""
    old = log.read_text("utf-8").splitlines() if log.is_file() else []
    lines = {text.rsplit("\t", 1)[-1]: text for text in [*old, line]}
    log.write_text("".join(f"{lines[name]}\n" for name in every if name in lines), "utf-8")


@dataclass(frozen=True)
class Replay:
    """Where a replay happens and what it may take."""

    log: Path
    every: tuple[str, ...]  # commands of the page
    limit: float
    stages: str = ""

    def all_of(self, chosen: Sequence[str], clone: Path) -> bool:
        """Run them in one clone; the log is written as it goes."""
        bins = f"{clone / '.venv' / 'bin'}:{os.environ['PATH']}"
        out = os.environ.get("OUT", "out")
        environment = {**os.environ, "PATH": bins, "OUT": out, "COMMIT": commit_of(clone)}
        is_ok = True
        for command in chosen:
            asked = f"{command} {self.stages}".strip()
            done = run(asked, clone, environment, self.limit)
            done = replace(done, command=command, stages=self.stages)
            with_line(self.log, self.every, done.line())
            print(done.line(), flush=True)
            is_ok = is_ok and done.status == 0
        return is_ok


def main() -> int:
    """Parse, choose, replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="the GPU part, on a GPU machine")
    parser.add_argument("--only", default="", help="commands that hold this text")
    parser.add_argument("--into", type=Path, help="the clone to use; made there if it is missing")
    parser.add_argument("--limit", type=float, default=LONGEST, help="seconds for one command")
    parser.add_argument("--stages", default="", help="of the one command that --only leaves")
    parser.add_argument("--list", action="store_true", help="print the commands, run none")
    options = parser.parse_args()
    every = commands_of(PAGE.read_text("utf-8"), options.gpu)
    chosen = [command for command in every if options.only in command]
    if options.list:
        print("\n".join(chosen))
        return 0
    if options.stages and len(chosen) != 1:
        parser.error(f"--stages is for one command, --only {options.only!r} leaves {len(chosen)}")
    commit_of(ROOT)  # a checkout that cannot name its commit is refused before anything is copied
    name = "gpu" if options.gpu else "cpu"
    log = ROOT / "reports" / f"operator_replay_{name}.log"
    replay = Replay(log, tuple(every), options.limit, options.stages)
    with TemporaryDirectory() as scratch:
        into = options.into or Path(scratch) / "aerie"
        return 0 if replay.all_of(chosen, fresh(ROOT, into.resolve())) else 1


if __name__ == "__main__":
    sys.exit(main())
