"""Run every client of `clients.py`, unmodified, against `aerie serve`, and keep what each said.

    python -m scripts.interop.run [--only NAME ...]      (make interop)

Writes a transcript of each run and a table of all that are there to reports/interop/; ends with
status 1 if one failed. The clients come from .interop (install.sh).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aerie.bench.provenance import provenance
from scripts import ROOT
from scripts.interop.clients import Client, clients
from scripts.server_under_test import EXACT, serving

REPORTS = ROOT / "reports/interop"
PROGRAMS = ".interop/bin"
TOKENIZER = "src/aerie/assets/pair/target"
NAMES = {"": "aerie-pair"}  # of what is served, by dialect
SCRIPTED = "scripts.interop.scripted"  # the pair with forced logits, for every other one
OPTIONS = ("--metrics-compat", "vllm", *EXACT)
CLIENT_SECONDS = 300
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Tables are drawn for wide terminals: a third of what some clients write is lines and blanks.
LINES, BLANKS = re.compile(r"([─━═=_-])\1{3,}"), re.compile(r"(?<=\S) {3,}")
MOST_LINE = 600  # characters
# Where else people are sent is not a result of the run.
ADDRESS = re.compile(r"https?://(?!127\.0\.0\.1)[^\s\"'<>)\]]+")


@dataclass(frozen=True)
class Outcome:
    """One run: what was said, and whether that is a pass."""

    client: Client
    command: str
    versions: Mapping[str, str]
    status: int  # -1: it did not end in time
    seconds: float
    output: str

    @property
    def missing(self) -> list[str]:
        """Proofs that the output does not hold."""
        return [proof for proof in self.client.proofs if not re.search(proof, self.output)]

    @property
    def has_passed(self) -> bool:
        """Ended well, and did what it was to do."""
        return self.status == 0 and not self.missing

    def transcript(self, made: Mapping[str, object]) -> str:
        """Command, versions, verdict, output; `made` says by what and where."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return "\n".join(
            [
                f"client: {self.client.name}",
                f"versions: {versions}",
                f"aerie: {made['aerie']}, commit {made['commit']}, {made['date']}",
                f"device: {made['device']}",
                f"server: {served(self.client.dialect)}",
                f"command: {self.command}",
                f"exit status: {self.status}, {self.seconds:.1f} s",
                *(
                    f"expected and found: {proof}"
                    for proof in self.client.proofs
                    if self.has_passed
                ),
                *(f"expected and not found: {proof}" for proof in self.missing),
                f"verdict: {'passed' if self.has_passed else 'FAILED'}",
                "output:",
                "",
                self.output,
            ]
        )


def run(client: Client, url: str, scratch: str) -> Outcome:
    """One client, to its end."""
    name = NAMES.get(client.dialect, "scripted")
    filled = client.arguments.format(url=url, name=name, tokenizer=TOKENIZER, scratch=scratch)
    words = [f"{PROGRAMS}/{client.program}", *shlex.split(filled)]
    environment = {**os.environ, **client.environment, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    environment |= {"NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    environment["TMPDIR"] = scratch  # what a client says of its temporary files names no machine
    began = time.monotonic()
    try:
        ended = subprocess.run(
            words,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CLIENT_SECONDS,
            check=False,
        )
        status, output = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as late:
        status, output = -1, late.stdout or b""
    seconds = time.monotonic() - began
    shown = f"{client.program} {filled}"
    settings = " ".join(f"{name}={value}" for name, value in client.environment.items())
    command = cleaned(f"{settings} {shown}", scratch).strip()
    text = cleaned(output.decode(errors="replace"), scratch)
    return Outcome(client, command, versions(client.packages), status, seconds, text)


def cleaned(text: str, scratch: str) -> str:
    """Without colours, overwritten progress, padding, this machine's folders, others' addresses."""
    for place, shown in ((scratch, "SCRATCH"), (f"{ROOT}/", ""), (str(Path.home()), "~")):
        text = text.replace(place, shown)
    text = ADDRESS.sub("(address)", COLOURS.sub("", text))
    text = BLANKS.sub("  ", LINES.sub(r"\1\1\1", text))
    lines = (line.rsplit("\r", 1)[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(map(shortened, lines)))
    return text.strip("\n") + "\n"


def shortened(line: str) -> str:
    """A line of every default of a client is cut, and says how long it was."""
    if len(line) <= MOST_LINE:
        return line
    return f"{line[: MOST_LINE // 2]} … of {len(line)} characters"


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of packages in the clients' environment, and of its Python."""
    source = (
        "import importlib.metadata as m, json, platform, sys;"
        "print(json.dumps({**{p: m.version(p) for p in sys.argv[1:]},"
        " 'Python': platform.python_version()}))"
    )
    asked = [f"{PROGRAMS}/python", "-c", source, *packages]
    found: dict[str, str] = json.loads(subprocess.check_output(asked, cwd=ROOT, text=True))
    return found


@dataclass(frozen=True)
class Row:
    """A run as its transcript tells it."""

    client: Client
    transcript: str

    def said(self, pattern: str) -> str:
        """What a line of its head says."""
        found = re.search(pattern, self.transcript.partition("output:\n")[0], re.MULTILINE)
        assert found, f"{self.client.name}.txt says nothing like {pattern}: run it again"
        return found.group(1)

    @property
    def acceptance(self) -> str:
        """The acceptance length that the client printed, if it prints one."""
        wanted = self.client.acceptance
        found = re.search(wanted, self.transcript) if wanted else None
        return found.group(1) if found else ""

    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        name = self.client.name
        return (
            f"[{name}]({name}.txt)",
            self.said(r"^versions: ([^,]+)"),
            self.said(r"^verdict: (\w+)"),
            self.acceptance,
            self.said(r"^aerie: .*commit (\w{10})"),
        )


def summary(device: object) -> str:
    """The table of all runs on record, whenever each was made."""
    known = [(client, REPORTS / f"{client.name}.txt") for client in clients()]
    rows = [
        Row(client, path.read_text(encoding="utf-8")) for client, path in known if path.exists()
    ]
    dates = sorted((row.said(r"^aerie: .*, (\S+)$"), row.said(r"commit (\w+)")) for row in rows)
    return "\n".join(
        [
            "# Clients of other projects against `aerie serve`",
            "",
            f"Written by `make interop`, last of commit {dates[-1][1]}, {dates[-1][0]}; kind:"
            f" measured. The built-in pair on a CPU ({device}), a fixed tree; every"
            " client as it is published, on a handful of short prompts, mostly random tokens."
            " Tool loops talk to the pair with forced logits. Acceptance lengths are what the"
            " clients print; SGLang's is over all requests since the start. Times in the"
            " transcripts are no benchmark.",
            "",
            "| run | client | verdict | acceptance length | commit |",
            "|---|---|---|---:|---|",
            *("| " + " | ".join(row.cells()) + " |" for row in rows),
            "",
        ]
    )


def served(dialect: str) -> str:
    """The server that clients are run against: its module, and its options."""
    return f"{SCRIPTED} {dialect}" if dialect else f"aerie serve {' '.join(OPTIONS)}"


def run_group(dialect: str, group: list[Client], made: Mapping[str, object]) -> list[Outcome]:
    """Clients of one server, one after the other; each transcript is written at once."""
    outcomes = []
    started = serving(dialect, module=SCRIPTED) if dialect else serving(*OPTIONS)
    with tempfile.TemporaryDirectory() as scratch, started as server:
        for client in group:
            outcome = run(client, f"http://127.0.0.1:{server.port}", scratch)
            (REPORTS / f"{client.name}.txt").write_text(outcome.transcript(made))
            verdict = "passed" if outcome.has_passed else f"FAILED, missing {outcome.missing}"
            print(f"{client.name}: {verdict}, {outcome.seconds:.0f} s", flush=True)
            outcomes.append(outcome)
        assert server.call("GET", "/health").status == 200, f"the server died: {server.log}"
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    only = parser.parse_args().only
    chosen = [client for client in clients() if not only or client.name in only]
    assert chosen, f"there are: {', '.join(client.name for client in clients())}"
    made = provenance("cpu")
    REPORTS.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for dialect, group in itertools.groupby(chosen, lambda client: client.dialect):
        outcomes += run_group(dialect, list(group), made)
    (REPORTS / "README.md").write_text(summary(made["device"]), encoding="utf-8")
    return int(not all(outcome.has_passed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
