"""The committed tables, pictures, scorecard and manifest are what their raw data gives today."""

from pathlib import Path

import pytest

from aerie.bench.report.write import make
from aerie.cli.report import judges
from tests.laws.tree import ROOT


def test_reports_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails after a new measurement or a changed kernel: run `aerie report`, commit its files."""
    monkeypatch.chdir(ROOT)
    stale = make(Path(), judges(Path()), writes=False).written
    assert not stale, f"run `aerie report`; out of date: {', '.join(stale)}"
