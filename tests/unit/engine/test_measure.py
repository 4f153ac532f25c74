"""Costs of the eager loop: every part is measured, time that others took is not, and it is said."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from aerie.assemble import scratch_cores
from aerie.config import EngineConfig, ModelConfig
from aerie.engine import measure
from aerie.engine.measure import Grid, measure_costs
from aerie.engine.measure_quiet import Disturbance, drift_between
from tests.unit.engine.cores import LIMITS, Pair

CONFIG = EngineConfig(model=ModelConfig(device="cpu", numerics="exact"))
GRID = Grid((1, 2), (16, 48), most_rows=8, repeats=2, most_tokens=0)


def test_every_part_of_a_round_has_a_price(pair: Pair) -> None:
    seen: list[tuple[int, int]] = []
    make = scratch_cores(CONFIG, pair.target, pair.head, LIMITS)
    table = measure_costs(make, GRID, {"kind": "x"}, lambda what, *far: seen.append(far))
    assert [(s.batch, s.context) for s in table.extend.samples] == [
        (1, 16),
        (1, 48),
        (2, 16),
        (2, 48),
    ]
    assert {s.rows for s in table.verify.samples if s.batch == 1} == {1, 2, 4, 8}
    assert {s.rows for s in table.draft.samples} == {1, 2, 4}
    assert table.provenance.keys() >= {"kind", "stolen", "drift"}
    assert seen == [(done, 6) for done in range(7)]


def test_no_point_but_the_first_is_begun_after_the_time_is_up(pair: Pair) -> None:
    make = scratch_cores(CONFIG, pair.target, pair.head, LIMITS)
    table = measure_costs(make, replace(GRID, most_seconds=0.0), {})
    assert {(s.batch, s.context) for s in table.verify.samples} == {(1, 16)}
    assert table.provenance["drift"] == 1.0  # nothing was measured twice


def test_time_that_others_took_is_not_the_rounds(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock by which this thread has its core for a hundredth of the time."""

    class Stolen:
        perf_counter = staticmethod(time.perf_counter)
        thread_time = staticmethod(lambda: time.perf_counter() / 100)

    monkeypatch.setattr(measure, "time", Stolen)
    make = scratch_cores(CONFIG, pair.target, pair.head, LIMITS)
    begin = time.perf_counter()
    table = measure_costs(make, replace(GRID, batches=(1,), most_seconds=0.0), {})
    assert table.provenance["busy"] == "other processes took 99% of its core meanwhile"
    assert sum(s.seconds for s in table.verify.samples) < (time.perf_counter() - begin) / 50


def test_what_counts_as_busy() -> None:
    assert Disturbance(0.02, 1.1).reason is None
    assert Disturbance(0.5, 1.0).reason == "other processes took 50% of its core meanwhile"
    assert "1.60 times as long" in str(Disturbance(0.0, 1.6).reason)
    assert drift_between([1.0, 2.0, 4.0], [2.0, 2.0, 1.0]) == 2.0
    assert drift_between([], []) == 1.0
