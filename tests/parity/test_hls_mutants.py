"""Parity bites in C++, too: one flipped operator or constant in a header is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.kernels.registry import backend_info, why_unavailable

ROOT = Path(__file__).parents[2]
REASON = why_unavailable(backend_info("hls"))


@pytest.mark.slow
@pytest.mark.skipif(bool(REASON), reason=f"hls: {REASON}")
def test_nearly_every_mutant_is_noticed() -> None:
    """The script fails below 95 %; its log is reports/hls_mutants.md."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "scripts.mutate_hls"]
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
