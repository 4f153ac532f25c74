"""docs/your-model.md, replayed: every command of the page, on checkpoints made for this test.

The commands are read from the page, so that page and test cannot differ.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.cli.main import app
from tests.e2e.strangers import write_llama, write_qwen
from tests.laws.tree import ROOT

PAGE = ROOT / "docs/your-model.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.S | re.M)
# The first block names the two directories; a replay has its own.
NAMES, *STEPS = BLOCK.findall(PAGE.read_text("utf-8"))
*IN_PROCESS, SERVE = STEPS
# What the run in CI leaves out of the grid of texts.
NARROW = "--quick --policies off,chain --scenes together --batches 3 --chunks 48"


def replay(commands: str, folder: Path, pair: tuple[Path, Path]) -> str:
    """The commands in one shell, as a reader types them; what they printed."""
    (folder / "bin").mkdir()
    program = folder / "bin/aerie"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m aerie "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    named = {"MODEL": str(pair[0]), "HEAD": str(pair[1]), "AERIE_CACHE": str(folder / "cache")}
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=folder,
        env={**os.environ, **named, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        return port


def hold(folder: Path, said: str) -> None:
    """What the page promises of its first four steps."""
    assert "every stage within tolerance" in said and "probe of the head over" in said
    assert "identical: all 32 tokens" in said
    kept = [json.loads(path.read_text("utf-8")) for path in (folder / "cache/costs").glob("*.json")]
    made = {own["provenance"]["numerics"]["numerics"]: own["provenance"]["kind"] for own in kept}
    # A first text plans from the table that was kept and measures none of its own; an audit of the
    # planner in other numerics does.
    assert len(kept) == len(made) and made.pop("fast") == "measured"
    assert made in ({}, {"exact": "measured at load"})
    certificate = json.loads((folder / "certificate.json").read_text("utf-8"))
    assert certificate["ok"] and certificate["differing"] == 0 < certificate["compared"]


def test_the_page_names_two_directories_first() -> None:
    assert re.findall(r"^(\w+)=", NAMES, re.M) == ["MODEL", "HEAD"]


# That a random head does not agree with its target is told by a warning, as it should be.
@pytest.mark.filterwarnings("ignore::aerie.models.probe.ProbeWarning")
def test_a_strange_llama_up_to_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same commands called from here: each saves the start of a process."""
    model, head = write_llama(tmp_path)
    for name, value in {"MODEL": model, "HEAD": head, "AERIE_CACHE": tmp_path / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    said = ""
    for line in "".join(IN_PROCESS).replace("--quick", NARROW).splitlines():
        program, *words = shlex.split(os.path.expandvars(line))
        assert program == "aerie"
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said += done.stdout
    hold(tmp_path, said)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_llama, write_qwen])
def test_the_whole_page(write: Callable[[Path], tuple[Path, Path]], tmp_path: Path) -> None:
    steps = "\n".join(STEPS).replace("8000", str(free_port()))
    said = replay(steps, tmp_path, write(tmp_path))
    hold(tmp_path, said)
    assert "0 of" in said.splitlines()[-1]


@pytest.mark.slow
def test_costs_are_measured_as_far_as_the_model_has_positions(tmp_path: Path) -> None:
    pair = write_llama(tmp_path)
    costs = 'aerie tune costs --model "$MODEL" --draft "$HEAD" --batch 1 --repeats 1 --most-rows 2'
    assert "wrote costs.json" in replay(costs, tmp_path, pair)
    samples = json.loads((tmp_path / "costs.json").read_text("utf-8"))["verify"]
    assert {sample["context"] for sample in samples} == {256, 2048}
