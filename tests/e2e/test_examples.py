"""Every example runs: what the documentation shows is what the code does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST = 120  # seconds; an example that takes longer is a benchmark


def test_there_is_an_example() -> None:
    assert EXAMPLES, "examples/ holds no Python file"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    # PYTHONPATH for bare machines, where the tests run from the checkout without an install.
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), f"{example.name} printed nothing"
