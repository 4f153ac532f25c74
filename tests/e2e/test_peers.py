"""`scripts/peers/offline.py` on a CPU: lanes take turns, and their texts are the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.bench.record import read_rows
from tests.laws.tree import ROOT

SMALL = ("--device", "cpu", "--dtype", "float32", "--longest", "256", "--pages", "64")


@pytest.mark.slow
def test_lanes_take_turns(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    script = [sys.executable, "scripts/peers/offline.py", "turns", str(out), *SMALL]
    asked = ("--lanes", "aerie:plain,aerie:chain3", "--points", "1x32,2x24", "--groups", "3")
    run = subprocess.run(
        [*script, *asked, "--tokens", "12"], env=environment, cwd=ROOT, timeout=300, check=False
    )
    assert run.returncode == 0
    rows = [row for row in read_rows([out]) if row["kind"] == "decode"]
    turns = [(row["point"], row["group"], row["lane"]) for row in rows]
    lanes = ("aerie plain", "aerie chain3")
    places = [(point, group) for point in ("1x32", "2x24") for group in range(3)]
    assert turns == [
        (*place, lanes[(turn + own) % 2]) for turn, place in enumerate(places) for own in range(2)
    ]
    texts = {turn: row["ids"] for turn, row in zip(turns, rows, strict=True)}
    assert all(texts[*place, lanes[0]] == texts[*place, lanes[1]] for place in places)
    assert len({row["run"] for row in rows}) == 1
    assert all(row["acceptance_length"] > 1 for row in rows if row["lane"] == lanes[1])
