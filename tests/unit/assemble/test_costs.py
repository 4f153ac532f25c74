"""Cost tables: measured once, kept, read strictly, repeated after a busy moment, never foreign."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aerie.costs
from aerie.api import Engine
from aerie.assemble import core, costs
from aerie.costs.table import CostTable, Surface, load_costs
from aerie.errors import UsageError
from aerie.speculation.planner import Planner
from tests.unit.tune.slow_plans import SlowPlans

MADE_UP = Path(__file__).parents[2] / "data" / "costs_cheap.json"


class Measuring:
    """Stands for the measurement: counts, and hands out a table as if it had measured one."""

    def __init__(self) -> None:
        self.count = 0
        self.busy: str | None = None
        self.is_cut = False  # after the first point

    def __call__(self, make: object, grid: object, record: Any, progress: object) -> CostTable:
        self.count += 1
        found = {**record, "busy": self.busy} if self.busy else record
        table = replace(load_costs(MADE_UP), provenance=found)
        return replace(table, extend=Surface(table.extend.samples[:1])) if self.is_cut else table


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measuring:
    found = Measuring()
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(core, "measure_costs", found)
    return found


def load(**settings: Any) -> Engine:
    return Engine.load(device="cpu", cache={"n_pages": 64}, **settings)


def table_of(engine: Engine) -> CostTable:
    planner = engine.core.parts.policy
    assert isinstance(planner, Planner)
    return planner.costs


def kept(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "costs").iterdir()
    return path


def test_costs_are_measured_once(measuring: Measuring, tmp_path: Path) -> None:
    load()
    assert table_of(load()).provenance["kind"] == "measured at load"
    assert measuring.count == 1
    assert kept(tmp_path).suffix == ".json"
    load(numerics="exact")
    assert measuring.count == 2  # other products, other costs


def test_a_slow_machine_measures_for_half_a_minute_and_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path / "cache"))
    slow = SlowPlans(4.0)
    slow.install(monkeypatch)
    assert table_of(load()) == load_costs(kept(tmp_path))
    took = slow.now
    assert 0 < took <= 30
    assert {s.batch for s in table_of(load()).extend.samples} == {1}
    assert slow.now == took


def test_a_gpu_that_only_compiled_in_time_measures_again(
    measuring: Measuring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measuring.is_cut = True
    load(engine="graphs")
    assert "1 of 3 batch sizes were measured in time" in caplog.text
    monkeypatch.setattr(costs, "AGAIN_SECONDS", -1)
    monkeypatch.setattr(core, "is_quiet_now", lambda: True)
    load(engine="graphs")
    assert measuring.count == 2


SPOILT: tuple[Callable[[str], str], ...] = (
    lambda text: "",
    lambda text: "[" * 100_000,
    lambda text: "[]",
    lambda text: text[: len(text) // 2],
    lambda text: text.replace('"aerie-costs"', '"costs"'),
    lambda text: text.replace('"rows": 1,', '"rows": "1",', 1),
    lambda text: text.replace('"rows": 1,', '"rows": NaN,', 1),
    lambda text: text.replace('"seconds": ', '"seconds": -', 1),
    lambda text: text.replace('"batch": 1,', "", 1),
    lambda text: text.replace('"torch": "', '"torch": "1', 1),
    lambda text: text.replace('"code": "', '"code": "x', 1),
)


def test_a_file_that_is_spoilt_or_of_another_version_is_ignored(
    measuring: Measuring, tmp_path: Path
) -> None:
    provenance = table_of(load()).provenance
    identity = {name: value for name, value in provenance.items() if name != "kind"}
    path = kept(tmp_path)
    whole = path.read_text()
    assert costs.kept_costs(identity) == load_costs(path)
    for spoil in SPOILT:
        path.write_text(spoil(whole))
        assert path.read_text() != whole
        assert costs.kept_costs(identity) is None
    load()
    assert measuring.count == 2 and path.read_text() == whole


def test_a_busy_measurement_is_used_said_and_repeated(
    measuring: Measuring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measuring.busy = "other processes took half of its core"
    load()
    assert "busy machine (other processes took half of its core)" in caplog.text
    monkeypatch.setattr(core, "is_quiet_now", lambda: True)
    load()
    assert measuring.count == 1  # it was just now
    monkeypatch.setattr(costs, "AGAIN_SECONDS", -1)
    monkeypatch.setattr(core, "is_quiet_now", lambda: False)
    load()
    assert measuring.count == 1
    measuring.busy = None
    monkeypatch.setattr(core, "is_quiet_now", lambda: True)
    load()
    load()
    assert measuring.count == 2


def test_a_cache_that_cannot_be_written_does_no_harm(
    measuring: Measuring,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AERIE_CACHE", str(MADE_UP))
    with caplog.at_level(logging.WARNING):
        load()
    assert "the next load measures again" in caplog.text


def test_a_foreign_table_is_refused_by_name(measuring: Measuring, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"another device \(it does not say which\)"):
        load(planner={"costs": str(MADE_UP)})
    taken = load(planner={"costs": str(MADE_UP), "foreign_costs": True})
    assert table_of(taken) == load_costs(MADE_UP)
    h200 = Path(aerie.costs.__file__).parent / "costs_h200.json"
    said = r"device \(NVIDIA H200, here .*\) and engine \(graphs, here direct\) and pair \(dtype"
    with pytest.raises(UsageError, match=said):
        load(planner={"costs": str(h200)})
    assert measuring.count == 0


def test_a_table_measured_here_may_be_given_as_a_file(measuring: Measuring, tmp_path: Path) -> None:
    load()
    copy = tmp_path / "costs.json"
    copy.write_text(kept(tmp_path).read_text())
    values = json.loads(copy.read_text())
    values["provenance"]["torch"] = "an older one"
    copy.write_text(json.dumps(values))
    load(planner={"costs": str(copy)})
    assert measuring.count == 1


def test_a_shipped_table_goes_first() -> None:
    """Each is found by what it is of, the numerics included where there are several."""
    folder = Path(aerie.costs.__file__).parent
    tables = [load_costs(path) for path in folder.glob("costs_*.json")]
    for table in tables:
        wanted = {n: table.provenance[n] for n in (*costs.ESSENTIAL, "numerics")}
        assert costs.shipped_costs(wanted) == table
        assert costs.shipped_costs({**wanted, "numerics": {}}) in tables
        assert costs.shipped_costs({**wanted, "device": "another"}) is None


def test_where_tables_are_kept() -> None:
    folder = costs.costs_folder
    assert folder({"AERIE_CACHE": "/own"}) == Path("/own/costs")
    assert folder({"XDG_CACHE_HOME": "/shared"}) == Path("/shared/aerie/costs")
    assert folder({}) == Path("~/.cache/aerie/costs").expanduser()
