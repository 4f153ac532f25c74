"""The C++ reader of dumps, built for tests; shared, not a test itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.laws.tree import ROOT

BENCH = ROOT / "src" / "aerie" / "kernels" / "hls" / "tb"
FLAGS = (
    *("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


def build(program: str, folder: Path) -> Path:
    """Compile one program of the test benches with the sanitizers on."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine: the C++ reader is not built")
    out = folder / program
    command = [compiler, *FLAGS, str(BENCH / f"{program}.cpp"), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def run(program: Path, arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Run it; a sanitizer's report is in `stderr`."""
    command = [str(program), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True)
