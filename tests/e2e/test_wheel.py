"""The wheel installs into an empty environment, with its own dependencies, and works there.

The real thing on purpose: an environment that could see this one's packages would hide a missing
dependency or a data file that was left out. Minutes, most of them the installation of torch.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


def run(*command: str | Path, cwd: Path) -> str:
    """Run to the end in a clean environment; a failure shows everything the command printed."""
    hidden = ("PYTHON", "AERIE_", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    shown = f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, shown
    return done.stdout


def install(wheel: Path, scratch: Path) -> Path:
    """The `bin` folder of an environment that holds the wheel and what it asks for, no more."""
    venv.create(scratch / "venv", with_pip=True)
    bin_ = scratch / "venv" / "bin"
    pip = (bin_ / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    # torch first and exactly: see constraints.txt.
    pins = CONSTRAINTS.read_text("utf-8").splitlines()
    run(*pip, next(pin for pin in pins if pin.startswith("torch==")), cwd=scratch)
    run(*pip, "-c", CONSTRAINTS, wheel, cwd=scratch)
    return bin_


# One test, not one per command: parallel workers would each pay for the installation.
@pytest.mark.slow
def test_wheel_works_in_an_empty_environment() -> None:
    # Not tmp_path: pytest keeps the folders of the last three runs, and this one holds a torch.
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
        run(*build, "--outdir", scratch / "dist", ROOT, cwd=scratch)
        (wheel,) = (scratch / "dist").glob("aerie-*.whl")
        aerie = install(wheel, scratch) / "aerie"

        assert "doctor" in run(aerie, "--help", cwd=scratch)
        output = run(aerie, "doctor", "--json", cwd=scratch)
        assert json.loads(output.splitlines()[-1])["ok"] is True, output

        # The built-in pair travels inside the wheel.
        told = run(aerie, "generate", "import os\n", "--max-new-tokens", "8", "--json", cwd=scratch)
        found = json.loads(told.splitlines()[-1])
        assert found["ok"] is True and len(found["token_ids"]) == 8, told

        # So do the C++ headers of the hls backend.
        if shutil.which("g++"):
            options = ("--backend", "hls", "--kernel", "calculate_work_deltas", "--json")
            told = run(aerie, "parity", *options, cwd=scratch)
            assert json.loads(told.splitlines()[-1])["ok"] is True, told
