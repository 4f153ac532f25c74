"""Twenty thousand steps of one engine: nothing leaks, nothing drifts."""

import pytest

from tests.unit.engine.cores import Pair
from tests.unit.engine.soak import live


@pytest.mark.slow
def test_soak(pair: Pair, launcher: str) -> None:
    life = live(pair, launcher, 20_000, print)
    settled = life.resident[4:]
    assert max(settled) <= 1.02 * min(settled), settled
    assert life.n_preempted > 0
    assert life.n_checked >= 20


def test_a_short_life(pair: Pair, launcher: str) -> None:
    life = live(pair, launcher, 150, lambda line: None)
    assert life.n_finished > 10
