"""Random runs of every proposer, option, launcher and backend: tokens, scores and KV as plain."""

import pytest

from tests.unit.engine.cores import Pair
from tests.unit.engine.random_runs import OPTIONS, TURNS, Tally, draw, play

# Every proposer with every launcher and backend once; the others are slow.
FIRST, ALL = len(TURNS), 320


@pytest.mark.parametrize("seed", range(FIRST))
def test_a_run_writes_what_plain_decoding_writes(pair: Pair, seed: int) -> None:
    run, tally = draw(seed), Tally()
    play(pair, run, tally)
    assert tally.counts["requests"] == len(run.jobs), "every request was compared"


@pytest.mark.slow
def test_all_runs_write_what_plain_decoding_writes(pair: Pair) -> None:
    tally = Tally()
    for seed in range(FIRST, ALL):
        play(pair, draw(seed), tally)
    assert len(tally.runs) == len(TURNS) and len(tally.options) == len(OPTIONS)
    assert all(tally.counts.values())
