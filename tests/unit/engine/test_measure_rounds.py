"""Costs of captured rounds: what is measured, what a cut run keeps, and who is given a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aerie import assemble_costs
from aerie.assemble import choose_policy, graphs_core
from aerie.assemble_costs import describe_pair
from aerie.config import EngineConfig, GraphConfig, ModelConfig
from aerie.engine.measure_device import UNPRICED, DeviceGrid, measure_device_costs
from aerie.engine.request import Request
from aerie.speculation.costs import CostTable
from tests.unit.engine.cores import Pair

BUCKETS = GraphConfig(slots=(1, 2), rows=(1, 2, 4, 8, 16), columns=(256, 1024))
GRID = DeviceGrid((1, 2), (24,), most_rows=16, repeats=1, most_tokens=64, margin=640)
ON_GPU = EngineConfig(model=ModelConfig(device="cuda", dtype="bfloat16"))


def test_every_size_and_width_is_measured_at_every_point(pair: Pair) -> None:
    config = EngineConfig(model=ModelConfig(), graphs=BUCKETS)
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
    assert table.provenance == {"kind": "measured", "engine": "graphs"}
    # After the first point a run that is cut short holds that point.
    assert [len(part.extend.samples) for part in kept] == [1, 2]
    assert engine.is_idle


def test_corners_are_measured_first() -> None:
    grid = DeviceGrid((1, 8), (512, 4096, 16384), most_tokens=8 * 4096)
    assert grid.points() == [(1, 512), (8, 512), (1, 16384), (8, 4096), (1, 4096)]


def test_no_point_is_begun_after_the_time_is_up(pair: Pair) -> None:
    config = EngineConfig(model=ModelConfig(), graphs=BUCKETS)
    grid, notes = replace(GRID, most_seconds=-1.0), list[str]()
    engine = graphs_core(config, pair.target, pair.head, grid)
    measure_device_costs(engine, grid, {}, notes.append)
    assert len(notes) == 2 and all("not measured" in note for note in notes)


def test_a_gpu_plans_where_a_table_of_device_and_pair_is_shipped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = describe_pair(pair.target, pair.head)
    made = {"device": "Some GPU", "engine": "graphs", "pair": dict(own), "commit": "abcdef0123"}
    table = replace(UNPRICED, provenance=made)
    monkeypatch.setattr(assemble_costs, "shipped_tables", lambda: [table])
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Some GPU")
    assert choose_policy(ON_GPU).value == "fixed"
    found = choose_policy(ON_GPU, own)
    assert (found.value, found.origin) == ("planner", "table")
    assert "abcdef0" in found.reason
    other = choose_policy(ON_GPU, {**own, "layers": 99})
    assert other.value == "fixed" and "tune costs" in other.reason


def test_costs_are_measured_on_two_texts_in_turns(pair: Pair) -> None:
    """A lopsided forest costs attention more than real texts do."""
    config = EngineConfig(model=ModelConfig(), graphs=replace(BUCKETS, slots=(4,)))
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
