"""Measured costs: every size and width, experts, what a cut run keeps, time that others took."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.assemble.core import measured_core
from aerie.assemble.costs import describe_pair
from aerie.config import EngineConfig, GraphConfig, ModelConfig, SpeculationConfig
from aerie.costs.table import CostTable
from aerie.engine.engine import EngineCore
from aerie.models.feed_forward import ClampedGate, ExpertLinear, Experts
from aerie.models.geometry import ExpertGeometry
from aerie.models.linear import DenseLinear
from aerie.requests.params import SamplingParams
from aerie.tune import costs
from aerie.tune.clock import HostClock
from aerie.tune.costs import measure_costs
from aerie.tune.experts import count_of, counted
from aerie.tune.grid import QUICK, Grid
from tests.unit.engine.cores import (
    CHEAP,
    LAUNCHERS,
    Pair,
    core,
    finish_all,
    load_pair,
    write_pair,
)
from tests.unit.tune.slow_plans import SlowPlans

BUCKETS = GraphConfig(slots=(1, 2, 4), rows=(1, 2, 4, 8, 16), columns=(256, 1024))
GRID = Grid((1, 2), (24,), most_rows=16, repeats=1, most_tokens=64, margin=640)
EXPERTS, ACTIVE, WIDTH = 24, 2, 32
EXPERT_GRID = replace(GRID, batches=(1, 8), most_tokens=256)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(write_pair(tmp_path_factory.mktemp("pair")), "fast")


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


def engine_for(pair: Pair, launcher: str, grid: Grid) -> EngineCore:
    model = ModelConfig(device="cpu", numerics="fast")
    config = EngineConfig(model=model, engine=launcher, backend="numpy", graphs=BUCKETS)
    return measured_core(config, pair.target, pair.head, grid)


def test_every_size_and_width_is_measured_at_every_point(pair: Pair, launcher: str) -> None:
    kept: list[CostTable] = []
    seen: list[tuple[int, int]] = []
    engine = engine_for(pair, launcher, GRID)
    table = measure_costs(
        engine, GRID, {"kind": "measured"}, lambda what, *far: seen.append(far), kept.append
    )
    assert [(s.batch, s.rows) for s in table.verify.samples] == [
        *((1, rows) for rows in (1, 2, 4, 8, 16)),
        *((2, rows) for rows in (2, 4, 8, 16)),
    ]
    widths = (1, 4, 8)
    drafted = [(s.batch, s.rows) for s in table.draft.samples]
    assert drafted == [(batch, batch * width) for batch in (1, 2) for width in widths]
    assert [s.batch for s in table.extend.samples] == [1, 2]
    assert table.provenance.keys() >= {"kind", "stolen", "drift"}
    # After the first point a run that is cut short holds that point.
    assert [len(part.extend.samples) for part in kept] == [1, 2]
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert engine.is_idle


def test_corners_are_measured_first() -> None:
    grid = Grid((1, 8), (512, 4096, 16384), most_tokens=8 * 4096)
    assert grid.points() == [(1, 512), (8, 512), (1, 16384), (8, 4096), (1, 4096)]


def test_no_point_but_the_first_is_begun_after_the_time_is_up(pair: Pair, launcher: str) -> None:
    grid, notes = replace(GRID, most_seconds=-1.0), list[str]()
    engine = engine_for(pair, launcher, grid)
    table = measure_costs(engine, grid, {}, lambda what, done, total: notes.append(what))
    assert {(s.batch, s.context) for s in table.verify.samples} == {(1, 24)}
    assert [("not measured" in note) for note in notes] == [False, True, False]


def test_what_was_not_measured_is_stretched_from_one_request(pair: Pair) -> None:
    """A longer context adds to each of a larger batch what it adds to one request."""
    grid = replace(GRID, contexts=(24, 48), most_tokens=0)
    table = measure_costs(engine_for(pair, "direct", grid), grid, {})
    found = {(s.batch, s.context) for s in table.verify.samples}
    assert found == {(1, 24), (1, 48), (2, 24), (2, 48)}
    at = {(s.batch, s.context): s.seconds for s in table.extend.samples}
    added = max(at[1, 48] - at[1, 24], 0.0)
    assert at[2, 48] == pytest.approx(at[2, 24] + 2 * added)


@pytest.mark.parametrize("seconds", [0.5, 2.0, 4.0])
def test_measuring_ends_in_half_a_minute(
    seconds: float, pair: Pair, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a point, and before the first one is repeated; what was cut is left out."""
    grid = replace(GRID, batches=(1, 2, 4), most_seconds=QUICK[launcher].most_seconds)
    engine, slow = engine_for(pair, launcher, grid), SlowPlans(seconds)
    slow.install(monkeypatch)
    table = measure_costs(engine, grid, {})
    assert slow.now <= 30 and engine.is_idle
    measured = {sample.batch for sample in table.extend.samples}
    assert measured == ({1, 2, 4} if seconds == 0.5 else {1} if seconds == 4.0 else measured)
    for batch in measured - {1}:
        rows = [s.rows for s in table.verify.samples if s.batch == batch]
        assert rows[-1] == 16  # the point is whole
    assert {s.rows for s in table.draft.samples if s.batch == 1} >= {1}


def test_the_first_plans_are_run_however_long_they_take(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = replace(GRID, most_seconds=1.0)
    engine, slow = engine_for(pair, "direct", grid), SlowPlans(100.0)
    slow.install(monkeypatch)
    table = measure_costs(engine, grid, {})
    assert slow.now == 300
    assert [s.rows for s in table.verify.samples] == [1, 2, 4]
    assert len(table.draft.samples) == len(table.extend.samples) == 1


class SlowClock(HostClock):
    """Everything takes twice as long."""

    def seconds(self, before: Any, after: Any) -> float:
        return 2 * super().seconds(before, after)


def test_a_machine_that_slows_down_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = replace(GRID, batches=(1,))
    kept: list[CostTable] = []

    def slow_down(table: CostTable) -> None:
        kept.append(table)
        monkeypatch.setattr(costs, "clock_of", lambda device: SlowClock())

    table = measure_costs(engine_for(pair, "direct", grid), grid, {}, keep=slow_down)
    assert "busy" in table.provenance and float(str(table.provenance["drift"])) > 1.25
    assert table.verify == kept[0].verify


def test_time_that_others_took_is_not_the_rounds(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock by which this thread has its core for a hundredth of the time."""
    monkeypatch.setattr(time, "thread_time", lambda: time.perf_counter() / 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    begin = time.perf_counter()
    grid = replace(GRID, batches=(1,), most_seconds=0.0)
    table = measure_costs(engine_for(pair, "direct", grid), grid, {})
    assert table.provenance["busy"] == "other processes took 99% of its core meanwhile"
    assert sum(s.seconds for s in table.verify.samples) < (time.perf_counter() - begin) / 50


def test_costs_are_measured_on_two_texts_in_turns(pair: Pair, launcher: str) -> None:
    """A lopsided forest costs attention more than real texts do."""
    grid = replace(GRID, batches=(4,), most_tokens=128)
    engine = engine_for(pair, launcher, grid)
    sent: list[tuple[int, int]] = []
    discard = engine.discard

    def noted(request_id: int) -> None:
        request = engine.request(request_id)
        sent.append((request.statistics.num_draft_tokens, len(request.output)))
        discard(request_id)

    engine.discard = noted  # type: ignore[method-assign]
    measure_costs(engine, grid, {})
    assert sent[0] == sent[2] and sent[1] == sent[3]
    assert sent[0][0] + sent[1][0] > 0


def test_the_shipped_table_is_the_measured_one() -> None:
    root = Path(__file__).parents[3]
    shipped = root / "src" / "aerie" / "costs" / "costs_h200.json"
    assert shipped.read_bytes() == (root / "reports" / "costs_h200.json").read_bytes()


@pytest.fixture(scope="module")
def mixture(pair: Pair) -> Pair:
    """The trained pair with random experts in place of its target's gated MLPs."""
    generator = torch.Generator().manual_seed(3)
    hidden = pair.target.geometry.hidden_size

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    def experts() -> Experts:
        return Experts(
            router=DenseLinear(3 * drawn(EXPERTS, hidden), None),
            gate_up=ExpertLinear(
                drawn(EXPERTS, 2 * WIDTH, hidden),
                drawn(EXPERTS, 2 * WIDTH),
                ClampedGate(1.702, 7.0),
            ),
            down=ExpertLinear(drawn(EXPERTS, hidden, WIDTH), drawn(EXPERTS, hidden)),
            n_active=ACTIVE,
        )

    own = ExpertGeometry(EXPERTS, ACTIVE, 1.702, 7.0, is_mxfp4=False)
    layers = tuple(replace(layer, feed_forward=experts()) for layer in pair.target.layers)
    geometry = replace(pair.target.geometry, experts=own)
    return replace(pair, target=replace(pair.target, geometry=geometry, layers=layers))


@pytest.fixture(scope="module")
def table(mixture: Pair) -> CostTable:
    engine = engine_for(mixture, "direct", EXPERT_GRID)
    found = measure_costs(engine, EXPERT_GRID, {"kind": "measured"})
    assert engine.is_idle
    return found


def test_experts_are_counted_and_priced(mixture: Pair, table: CostTable) -> None:
    waking = table.waking
    assert waking is not None and waking.n_active == ACTIVE
    assert ACTIVE <= waking.n_spread <= EXPERTS and waking.seconds >= 0.0
    alone = [s.experts for s in table.verify.samples if s.batch == 1]
    assert alone[0] == ACTIVE  # one row
    assert ACTIVE < max(alone) <= EXPERTS
    # Requests that are two texts wake no more experts than two rows do.
    (plain,) = [s.experts for s in table.verify.samples if (s.batch, s.rows) == (8, 8)]
    assert ACTIVE <= plain <= 2 * ACTIVE
    assert float(waking.touched(8)) > plain
    assert describe_pair(mixture.target, mixture.head)["experts"] == [EXPERTS, ACTIVE]


def test_a_dense_target_has_nothing_to_count(pair: Pair) -> None:
    assert counted(pair.target) is pair.target and count_of(pair.target) is None
    assert describe_pair(pair.target, pair.head)["experts"] is False
    little = replace(EXPERT_GRID, batches=(1,), most_rows=2)
    table = measure_costs(engine_for(pair, "direct", little), little, {"kind": "measured"})
    assert table.waking is None and {s.experts for s in table.verify.samples} == {0.0}


def test_drafts_change_no_token_of_a_mixture(
    mixture: Pair, table: CostTable, launcher: str, tmp_path: Path
) -> None:
    cheap = replace(table, draft=table.draft.scaled(1e-3), extend=table.extend.scaled(1e-3))
    cheap.save(tmp_path / "costs.json")
    planner = replace(CHEAP, costs=str(tmp_path / "costs.json"))
    texts, n_drafted = [], []
    for method in ("none", "eagle3"):
        own = {"engine": launcher, "planner": planner}
        engine = core(mixture, "fast", **own, speculation=SpeculationConfig(method=method))
        params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
        prompts = [[(7 * i + text) % 61 for i in range(9 + text)] for text in range(3)]
        ids = [engine.submit(prompt, params) for prompt in prompts]
        finish_all(engine)
        requests = [engine.request(request_id) for request_id in ids]
        texts.append([request.tokens for request in requests])
        n_drafted.append(sum(request.statistics.num_draft_tokens for request in requests))
    assert texts[0] == texts[1]
    assert n_drafted[0] == 0 < n_drafted[1]
