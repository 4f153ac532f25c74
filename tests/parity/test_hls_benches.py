"""The stand-alone test benches: every case as a dump, no Python, under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aerie.kernels import load
from aerie.kernels.cases import cases_for
from aerie.kernels.hls.table import PORTED
from aerie.parity.dump import PROVENANCE
from aerie.parity.dump_cases import dump_cases

FOLDER = Path(__file__).parents[2] / "src/aerie/kernels/hls"
TOOLS = [tool for tool in ("g++", "make") if shutil.which(tool) is None]
needs_tools = pytest.mark.skipif(bool(TOOLS), reason=f"no {' and no '.join(TOOLS)}")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dumps")
    origin = {**dict.fromkeys(PROVENANCE, "test"), "backend": "reference", "device": "cpu"}
    cases = [case for name in PORTED for case in cases_for(name)]
    dump_cases(load("reference", data_errors="status"), cases, directory, origin)
    return directory


def run_benches(dumps: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-j2", "-C", str(FOLDER), "tb", f"DUMPS={dumps}", f"BUILD={build}"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@needs_tools
def test_benches_agree_and_sanitizers_are_clean(dumps: Path, tmp_path: Path) -> None:
    run = run_benches(dumps, tmp_path, "SANITIZE=1")
    assert run.returncode == 0, run.stdout + run.stderr
    said = {line.split()[0]: line for line in run.stdout.splitlines() if " dumps, " in line}
    assert set(said) == set(PORTED)
    for line in said.values():
        n_dumps = int(line.split()[1])
        assert n_dumps >= 25 and line.endswith(" 0 differ"), line
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    data = bytearray((dumps / "calculate_work_deltas-0000.safetensors").read_bytes())
    data[-3] ^= 0x40  # the last number of the record
    (wrong / "calculate_work_deltas-0000.safetensors").write_bytes(bytes(data))
    run = run_benches(wrong, tmp_path, "SANITIZE=1")
    assert run.returncode != 0
    assert "calculate_work_deltas-0000.safetensors differs: G" in run.stdout


@needs_tools
@pytest.mark.slow
def test_benches_agree_as_compiled_for_use(dumps: Path, tmp_path: Path) -> None:
    run = run_benches(dumps, tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr


@needs_tools
def test_without_dumps_the_benches_say_so(tmp_path: Path) -> None:
    environment = {**os.environ, "MAKEFLAGS": ""}
    command = [
        "make",
        "-C",
        str(FOLDER),
        "tb",
        f"DUMPS={tmp_path}",
        "KERNELS=",
        f"BUILD={tmp_path}",
    ]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode != 0 and f"no dumps in {tmp_path}" in run.stdout
