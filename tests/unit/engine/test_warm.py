"""Rounds recorded ahead, at once or in idle moments: nothing is left, and no text changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.requests.params import SamplingParams
from aerie.tune.grid import silent
from aerie.tune.warm import Idle, warm
from tests.unit.engine.cores import core, load_pair, outputs
from tests.unit.engine.test_captured import SHAPES

JOBS = [([1, 2, 3], SamplingParams(max_tokens=12, ignore_eos=True))]


@pytest.mark.parametrize("is_idle", [False, True], ids=["at once", "in idle moments"])
def test_everything_is_recorded_and_leaves_no_trace(pair_directory: Path, is_idle: bool) -> None:
    pair = load_pair(pair_directory, "exact")
    plain, engine = (
        core(pair, speculation=SHAPES["planner"], engine=launcher)
        for launcher in ("direct", "graphs")
    )
    if is_idle:
        idle = Idle(engine)
        n_left = len(idle)
        while idle:
            idle.record_one()
        assert n_left > 20
    else:
        told: list[tuple[str, int, int]] = []
        warm(engine, lambda *where: told.append(where))
        n_all = told[-1][1]
        assert n_all > 20 and told[-1] == ("recording rounds", n_all, n_all)
    assert not engine.launcher.unrecorded()
    assert outputs(engine, JOBS) == outputs(plain, JOBS)
    assert not engine.launcher.unrecorded()


def test_nothing_is_recorded_where_functions_are_called(pair_directory: Path) -> None:
    engine = core(load_pair(pair_directory, "exact"), speculation=SHAPES["planner"])
    assert not engine.launcher.unrecorded()
    warm(engine, silent)
