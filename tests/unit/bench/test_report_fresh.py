"""The committed tables, pictures, scorecard and manifest are what their raw data gives today."""

from pathlib import Path

import pytest

from aerie.bench.report.write import make
from aerie.cli.report import judges
from tests.laws.tree import ROOT


def test_reports_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails after a new measurement, or when a row fails; not because sources have changed.

    Rows that stand on older sources are stale: `aerie report --check` asks for that to be written
    down, a build does not.
    """
    monkeypatch.chdir(ROOT)
    made = make(Path(), judges(Path()), writes=False)
    stale = sorted(set(made.written) - set(made.aged))
    assert not stale, f"run `aerie report`; out of date: {', '.join(stale)}"
    assert not made.failed, [(one.row.id, one.notes) for one in made.failed]
