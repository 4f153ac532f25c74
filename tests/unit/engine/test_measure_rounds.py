"""Costs of captured rounds: what is measured, what a cut run keeps, and who is given a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie.assemble import graphs_core
from aerie.config import EngineConfig, GraphConfig, ModelConfig
from aerie.engine.device_clock import CLOCKS, HostClock
from aerie.engine.measure_device import DeviceGrid, measure_device_costs
from aerie.engine.request import Request
from aerie.speculation.costs import CostTable
from tests.unit.engine.cores import Pair

BUCKETS = GraphConfig(slots=(1, 2), rows=(1, 2, 4, 8, 16), columns=(256, 1024))
GRID = DeviceGrid((1, 2), (24,), most_rows=16, repeats=1, most_tokens=64, margin=640)


def test_every_size_and_width_is_measured_at_every_point(pair: Pair) -> None:
    config = EngineConfig(model=ModelConfig(device="cpu"), graphs=BUCKETS)
    kept: list[CostTable] = []
    engine = graphs_core(config, pair.target, pair.head, GRID)
    table = measure_device_costs(engine, GRID, {"kind": "measured"}, keep=kept.append)
    assert [(s.batch, s.rows) for s in table.verify.samples] == [
        *((1, rows) for rows in (1, 2, 4, 8, 16)),
        *((2, rows) for rows in (2, 4, 8, 16)),
    ]
    widths = (1, 4, 8)
    drafted = [(s.batch, s.rows) for s in table.draft.samples]
    assert drafted == [(batch, batch * width) for batch in (1, 2) for width in widths]
    assert [s.batch for s in table.extend.samples] == [1, 2]
    assert table.provenance.keys() >= {"kind", "engine", "drift"}
    # After the first point a run that is cut short holds that point.
    assert [len(part.extend.samples) for part in kept] == [1, 2]
    assert engine.is_idle


def test_corners_are_measured_first() -> None:
    grid = DeviceGrid((1, 8), (512, 4096, 16384), most_tokens=8 * 4096)
    assert grid.points() == [(1, 512), (8, 512), (1, 16384), (8, 4096), (1, 4096)]


def test_no_point_is_begun_after_the_time_is_up(pair: Pair) -> None:
    config = EngineConfig(model=ModelConfig(device="cpu"), graphs=BUCKETS)
    grid, notes = replace(GRID, most_seconds=-1.0), list[str]()
    engine = graphs_core(config, pair.target, pair.head, grid)
    measure_device_costs(engine, grid, {}, lambda what, done, total: notes.append(what))
    assert len(notes) == 2 and all("not measured" in note for note in notes)


class SlowClock(HostClock):
    """Everything takes twice as long."""

    def seconds(self, before: Any, after: Any) -> float:
        return 2 * super().seconds(before, after)


def test_a_machine_that_slows_down_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model=ModelConfig(device="cpu"), graphs=BUCKETS)
    grid = replace(GRID, batches=(1,))
    engine = graphs_core(config, pair.target, pair.head, grid)
    kept: list[CostTable] = []

    def slow_down(table: CostTable) -> None:
        kept.append(table)
        monkeypatch.setitem(CLOCKS, "cpu", SlowClock)

    table = measure_device_costs(engine, grid, {}, keep=slow_down)
    assert "times as long a moment later" in str(table.provenance["busy"])
    assert table.verify == kept[0].verify


def test_costs_are_measured_on_two_texts_in_turns(pair: Pair) -> None:
    """A lopsided forest costs attention more than real texts do."""
    config = EngineConfig(model=ModelConfig(device="cpu"), graphs=replace(BUCKETS, slots=(4,)))
    grid = replace(GRID, batches=(4,), most_tokens=128)
    engine = graphs_core(config, pair.target, pair.head, grid)
    sent: list[list[int]] = []
    forget = engine.forget

    def noted(request_id: int) -> Request:
        request = forget(request_id)
        sent.append([request.statistics.num_draft_tokens, len(request.output)])
        return request

    engine.forget = noted  # type: ignore[method-assign]
    measure_device_costs(engine, grid, {})
    assert sent[0] == sent[2] and sent[1] == sent[3]
    assert sent[0][0] + sent[1][0] > 0


def test_the_shipped_table_is_the_measured_one() -> None:
    root = Path(__file__).parents[3]
    shipped = root / "src" / "aerie" / "speculation" / "costs_h200.json"
    assert shipped.read_bytes() == (root / "reports" / "costs_h200.json").read_bytes()
