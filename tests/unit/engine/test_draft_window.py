"""A head with a window and sinks drafts losslessly, in batches whose texts outgrow its window."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.attention.contract import Reach
from aerie.config import SpeculationConfig
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import DEAR, Pair, core, load_pair, outputs

WINDOW = 7


@pytest.fixture(scope="module")
def windowed(pair_directory: Path) -> Pair:
    return load_pair(pair_directory, "exact", window=WINDOW)


@pytest.mark.parametrize("policy", ["fixed", "planner"])
def test_tokens_are_those_of_plain_decoding(
    windowed: Pair, pair: Pair, launcher: str, policy: str
) -> None:
    """The planner leaves the draft alone for a while, and what it missed is shown to it later."""
    assert windowed.head.reach == Reach(WINDOW, 4)
    jobs = [
        (
            [1 + (i * step) % 30 for i in range(4 + 9 * step)],
            SamplingParams(max_tokens=40, ignore_eos=True, temperature=heat, seed=step),
        )
        for step, heat in ((1, 0.0), (2, 0.8), (3, 0.0))
    ]
    plain = outputs(core(pair, speculation=SpeculationConfig(method="none")), jobs)
    tree = SpeculationConfig(policy=policy, top_k=2, depth=3, nodes=6)
    engine = core(windowed, speculation=tree, engine=launcher, planner=DEAR)
    assert outputs(engine, jobs) == plain
    assert sum(engine.request(i).statistics.num_drafts for i in range(3)) > 0
