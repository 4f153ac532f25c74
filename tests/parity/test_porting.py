"""The backend of docs/porting.md: declared outside aerie, equal to the definition, or refused."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from aerie.errors import BackendUnavailableError, KernelBoundsError, UsageError
from aerie.kernels import catalogue, load
from aerie.kernels.cases import all_cases
from aerie.kernels.registry import backend_info
from aerie.parity.matrix import sources_hash
from aerie.parity.run import run_parity
from tests.laws.tree import ROOT

NAME = "toy_accelerator:BACKEND"


@pytest.fixture(autouse=True)
def example_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def test_the_example_is_equal_to_the_definition() -> None:
    # All cases of the kernels it has; of those it borrows, enough to see that they are there.
    own = importlib.import_module("toy_accelerator").KERNELS
    some = all_cases()[::20]
    cases = [*some, *(c for c in all_cases() if c.kernel in own and c not in some)]
    report = run_parity(load(NAME), load("reference"), cases)
    assert not report.failed, report.failed[0]
    assert set(report.kernels) == set(catalogue())


def test_it_runs_its_own_kernels() -> None:
    chip = importlib.import_module("toy_accelerator").CHIP
    before = chip.n_uploaded
    scores = np.array([[1.0, 0.5, 0.25]], np.float32)
    load(NAME)["calculate_work_deltas"](work_scores=scores, node_top_k=1, verify_num=3)
    assert chip.n_uploaded - before == scores.nbytes


def test_what_the_chip_cannot_hold_is_refused() -> None:
    scores = np.zeros((128, 65), np.float32)
    with pytest.raises(KernelBoundsError, match="scores the chip holds"):
        load(NAME)["calculate_work_deltas"](work_scores=scores, node_top_k=1, verify_num=64)


def test_a_declaration_that_is_none_is_refused() -> None:
    assert backend_info(NAME).base == "reference"
    assert len(sources_hash(NAME)) == 64
    with pytest.raises(BackendUnavailableError, match="PYTHONPATH"):
        backend_info("no_such_module:BACKEND")
    with pytest.raises(BackendUnavailableError, match="no attribute"):
        backend_info("toy_accelerator:BACKENDS")
    with pytest.raises(UsageError, match="expected a BackendInfo"):
        backend_info("toy_accelerator:CHIP")


def test_the_page_names_what_exists() -> None:
    page = (ROOT / "docs" / "porting.md").read_text("utf-8")
    for path in re.findall(r"`((?:src|examples|scripts|tests|reports)/[\w./]+)`", page):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\(([\w./]+)\)", page):
        assert (ROOT / "docs" / link).exists(), link
    assert str(Path(sys.modules["toy_accelerator"].__file__ or "").parent).endswith(
        "examples/toy_accelerator"
    )
