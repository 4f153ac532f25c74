"""Replicas on Ray Serve, for real: one is killed while streams run, three times."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.laws.tree import ROOT

pytestmark = pytest.mark.slow


def test_no_stream_of_a_lost_replica_ends_in_silence() -> None:
    """Each ends with its tokens or an error event, and new requests succeed within 5 s."""
    pytest.importorskip("ray", reason="no Ray (pip install 'aerie[ray]')")
    command = [sys.executable, "-m", "scripts.drills", "--only", "a replica lost"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert "broken: []" in run.stdout
