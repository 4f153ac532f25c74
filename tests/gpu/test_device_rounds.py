"""Captured rounds on a GPU: plain decoding's tokens, and no wait but for the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.bench.round.lossless import POLICIES, write_texts
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start
from aerie.bench.round.speed import run_without_waiting, step_to_room
from aerie.models.inflate import LargePair

# To watch for waits is a prototype of torch's, and it says so once.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]

COSTS = Path(__file__).parents[1] / "data" / "costs_cheap.json"
SETUP = RoundSetup(
    dtype="float32", geometry=None, backend="triton", costs=str(COSTS), foreign_costs=True
)
ROOM = Room(4, 96)


@pytest.fixture(scope="module")
def pair() -> LargePair:
    return SETUP.load()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", POLICIES)
def test_same_tokens_as_plain_decoding(pair: LargePair, policy: str, temperature: float) -> None:
    prompts = read_prompts(6, 40, pair.target.geometry.vocab_size)
    eager = RoundSetup(dtype="float32", geometry=None, backend="pytorch", engine="eager")
    plain = write_texts(eager.core(pair, POLICIES["plain"], ROOM), prompts, 32, temperature)
    core = SETUP.core(pair, POLICIES[policy], ROOM)
    assert write_texts(core, prompts, 32, temperature) == plain
    assert core.rounds is not None
    assert core.rounds.graphs.counts.captures > 0
    assert core.rounds.graphs.counts.replays > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_steady_rounds_wait_for_nothing_but_the_report(pair: LargePair, policy: str) -> None:
    core = SETUP.core(pair, POLICIES[policy], Room(1, 1024))
    assert core.rounds is not None
    for n_positions in (40, 500):
        core.rounds.record(1, n_positions)
    start(core, read_prompts(1, 40, pair.target.geometry.vocab_size), 400)
    for _ in range(6):
        core.step()
    step_to_room(core, 64)
    assert run_without_waiting(core, 8) is None
