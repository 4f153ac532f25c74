"""The committed parity matrix: complete, all green, and what its own JSON renders to."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.cli.main import app
from aerie.kernels import catalogue
from aerie.parity.matrix_page import read_matrix, render, why_stale
from tests.laws.tree import ROOT

REPORTS = ROOT / "reports"
MATRIX = REPORTS / "p0_parity_matrix.json"
MANDATORY = ("reference", "pytorch", "hls")


def test_every_mandatory_cell_is_green() -> None:
    matrix = read_matrix(MATRIX)
    assert matrix.ok
    for backend in MANDATORY:
        cells = [cell for c in matrix.columns if c.backend == backend for cell in c.cells]
        assert {cell.kernel for cell in cells} == set(catalogue())
        assert sum(cell.cases for cell in cells) >= 900
        assert all(cell.passed == cell.cases for cell in cells)
        assert all(cell.worst_ulps <= cell.tolerance_ulps for cell in cells)


def test_the_page_is_the_matrix() -> None:
    assert MATRIX.with_suffix(".md").read_text("utf-8") == render(read_matrix(MATRIX))


@pytest.mark.slow
def test_it_regenerates_byte_for_byte(tmp_path: Path) -> None:
    """From the sources as they are; run `aerie parity matrix` when this fails."""
    matrix = read_matrix(MATRIX)
    stale = {name: why_stale(matrix, name) for name in MANDATORY}
    assert not any(stale.values()), stale
    parts = sorted(REPORTS.glob("p0_parity_matrix_*.json"))
    merged = [argument for path in parts for argument in ("--merge", str(path))]
    dumps, out = ROOT / "tests" / "data" / "dumps", tmp_path / "matrix"
    command = ["parity", "matrix", "--dumps", str(dumps), "--out", str(out), *merged]
    assert CliRunner().invoke(app, command).exit_code == 0
    for suffix in (".json", ".md"):
        assert out.with_suffix(suffix).read_bytes() == MATRIX.with_suffix(suffix).read_bytes()
