"""Every Triton kernel compiles for every GPU architecture, with the tiles chosen for it there."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerie.chips import CHIPS
from tests.laws.tree import ROOT, source

pytest.importorskip("triton")

TABLE = ROOT / "reports/raw/compiled_gpus.json"
FOLDERS = ("src/aerie/kernels/triton_gpu/", "src/aerie/attention/triton/")


def compiled(out: Path, *options: str) -> dict[str, Any]:
    """What the script writes. A process of its own: here kernels may be interpreted."""
    command = [sys.executable, "-m", "scripts.compile_triton", "--write", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": "src"}
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    written: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return written


def launched_kernels() -> set[str]:
    """Compiled functions of the sources that are launched, and not called by another."""
    return {
        f"{Path(module.path).stem}.{function.name}"
        for module in source()
        if module.path.startswith(FOLDERS)
        for function in module.functions
        if any("triton.jit" in ast.unparse(mark) for mark in function.decorator_list)
        and function.name.endswith("_kernel")
    }


def test_the_table_holds_every_kernel_and_architecture() -> None:
    """None of them refused, none over its chip's shared memory."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    chips = {chip.architecture: [name, chip.shared_bytes] for name, chip in CHIPS.items()}
    assert table["chips"] == chips
    assert set(table["kernels"]) == launched_kernels()
    for name, row in table["kernels"].items():
        for chip, (n_variants, shared_bytes, *why_not) in zip(CHIPS.values(), row, strict=True):
            assert n_variants and not why_not, (name, chip, why_not)
            assert shared_bytes <= chip.shared_bytes, (name, chip)


def test_a_kernel_of_each_kind_compiles_without_a_gpu(tmp_path: Path) -> None:
    """Of the two with the least room; one has overlapping launches, the other none."""
    found = compiled(tmp_path / "sample.json", "--sample", "--arch", "86,120")
    assert list(found["chips"]) == ["sm_86", "sm_120"] and len(found["kernels"]) == 7


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_everything_an_engine_launches_compiles(chip: str, tmp_path: Path) -> None:
    found = compiled(tmp_path / "all.json", "--arch", str(CHIPS[chip].capability))
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    assert set(found["kernels"]) == set(table["kernels"])
    if found["provenance"]["triton"] != table["provenance"]["triton"]:
        return  # another compiler allots other amounts, all of them within the limit
    place = list(CHIPS).index(chip)
    for name, row in found["kernels"].items():
        assert row == [table["kernels"][name][place]], name


@pytest.mark.slow
def test_every_parity_case_compiles(tmp_path: Path) -> None:
    """Odd sizes and every option; the interpreter accepts what the compiler refuses."""
    from aerie.kernels.triton_gpu import KERNELS

    found = compiled(tmp_path / "cases.json", *KERNELS, "--arch", "90")
    assert sum(row[0][0] for row in found["kernels"].values()) > len(KERNELS)
