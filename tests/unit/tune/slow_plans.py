"""A machine on which every plan that is measured takes long, without the waiting."""

from types import SimpleNamespace

import pytest

from aerie.tune import costs


class SlowPlans:
    """A made-up clock by which running a plan takes some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0

    def run(self, *point_and_plan: object) -> costs._Timing:
        self.now += self.seconds
        return costs._Timing(0.02, 0.01)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(costs._Point, "_time", lambda *given: self.run(*given))
