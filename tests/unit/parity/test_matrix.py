"""The matrix: every case in one group, the same bytes twice, and stale columns refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aerie.errors import DumpError, ParityError
from aerie.kernels import load
from aerie.kernels.cases import all_cases, cases_for
from aerie.parity import matrix as matrices
from aerie.parity.dump_cases import dump_cases
from aerie.parity.matrix import Column, Matrix, group_of, measure_column
from aerie.parity.matrix_page import merge, read_matrix, render, render_json, why_stale
from tests.unit.parity.test_dump import ORIGIN, REFERENCE

K3, K5 = "calculate_work_deltas", "convert_logits_to_probas"


def column(folder: Path, backend: str) -> Column:
    dump_cases(REFERENCE, cases_for(K3)[:2], folder, ORIGIN)
    return measure_column(
        backend, "cpu", cases_for(K3) + cases_for(K5), sorted(folder.glob("*.safetensors"))
    )


def test_every_case_has_a_group() -> None:
    groups = Counter(group_of(case) for case in all_cases())
    assert set(groups) == set(matrices.GROUPS) - {matrices.CAPTURED}
    assert min(groups.values()) >= 30


def test_it_regenerates_byte_for_byte(tmp_path: Path) -> None:
    made = [
        Matrix(matrices.contract_hash(), (column(tmp_path / name, "pytorch"),)) for name in "ab"
    ]
    assert render(made[0]) == render(made[1])
    assert render_json(made[0]) == render_json(made[1])
    path = tmp_path / "matrix.json"
    path.write_text(render_json(made[0]), encoding="utf-8")
    assert read_matrix(path) == made[0]
    assert made[0].ok
    cells = made[0].columns[0].cells
    assert sum(cell.cases for cell in cells) == len(cases_for(K3) + cases_for(K5)) + 2
    assert {cell.tolerance_ulps for cell in cells} == {1, 4}
    assert "of 4 ulp" in render(made[0]).split("| K5 |")[1]


def test_a_failure_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = load("pytorch")
    monkeypatch.setattr(kernels[K3], "_run", lambda **_: {"G": np.zeros(2, np.float32)})
    monkeypatch.setattr(
        matrices, "load", lambda name, **options: kernels if name == "pytorch" else load(name)
    )
    found = measure_column("pytorch", "cpu", cases_for(K3), [])
    assert found.failed
    page = render(Matrix("x", (found,)))
    assert "differs: calculate_work_deltas" in page
    assert not Matrix("x", (found,)).ok


def test_columns_of_other_sources_are_refused(tmp_path: Path) -> None:
    fresh = Matrix(matrices.contract_hash(), (column(tmp_path, "pytorch"),))
    assert why_stale(fresh, "pytorch") is None
    assert "no column" in str(why_stale(fresh, "reference"))
    old = replace(fresh, columns=(replace(fresh.columns[0], sources_sha256="0"),))
    assert "other sources of pytorch" in str(why_stale(old, "pytorch"))
    assert "other cards" in str(why_stale(replace(fresh, contract_sha256="0"), "pytorch"))
    with pytest.raises(ParityError, match="other sources"):
        merge(fresh, old, "file")
    elsewhere = replace(fresh, columns=(replace(fresh.columns[0], device="cuda"),))
    assert [c.device for c in merge(fresh, elsewhere, "file").columns] == ["cpu", "cuda"]


def test_another_file_is_refused(tmp_path: Path) -> None:
    for text in ("", "{}", '{"format": "x", "version": 1}'):
        (tmp_path / "file").write_text(text)
        with pytest.raises(DumpError, match="no parity matrix"):
            read_matrix(tmp_path / "file")
