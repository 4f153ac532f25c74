"""Runs yosys scripts; pyosys is the package that brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aerie.errors import BackendUnavailableError

INSTALL = "pip install 'aerie[fpga]'"


def run_yosys(script: str, folder: Path) -> str:
    """Run a yosys script in a process of its own; returns what it said."""
    path = folder / "script.ys"
    path.write_text(script, encoding="utf-8")
    program = (
        "import sys\nfrom pyosys import libyosys\ndesign = libyosys.Design()\n"
        "for line in open(sys.argv[1], encoding='utf-8'):\n"
        "    if line.strip():\n        libyosys.run_pass(line.strip(), design)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, path.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        said = (run.stdout + run.stderr).strip()[-4000:]
        raise BackendUnavailableError(f"yosys failed ({INSTALL} brings it):\n{said}")
    return run.stdout
