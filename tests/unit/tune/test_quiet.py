"""A machine that others use while costs are measured is noticed, and said to be."""

from __future__ import annotations

from aerie.tune.quiet import Disturbance, drift_between


def test_what_counts_as_busy() -> None:
    assert Disturbance(0.02, 1.1).reason is None
    assert Disturbance(0.5, 1.0).reason == "other processes took 50% of its core meanwhile"
    assert "1.60 times as long" in str(Disturbance(0.0, 1.6).reason)
    assert drift_between([1.0, 2.0, 4.0], [2.0, 2.0, 1.0]) == 2.0
    assert drift_between([], []) == 1.0
