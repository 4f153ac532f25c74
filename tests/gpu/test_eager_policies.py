"""Policies that decide on the host, over trees that live on a GPU: the eager loop's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aerie.bench.round.lossless import write_texts
from aerie.bench.round.setup import Room, RoundSetup, read_prompts
from aerie.config import SpeculationConfig

pytestmark = pytest.mark.gpu

COSTS = Path(__file__).parents[1] / "data" / "costs_cheap.json"
SETUP = RoundSetup(
    dtype="float32", geometry=None, engine="eager", costs=str(COSTS), foreign_costs=True
)


@pytest.mark.parametrize("backend", ["pytorch", "triton"])
@pytest.mark.parametrize("policy", ["planner", "cast"])
def test_same_tokens_as_plain_decoding(policy: str, backend: str) -> None:
    setup = replace(SETUP, backend=backend)
    pair, room = setup.load(), Room(4, 96)
    prompts = read_prompts(4, 40, pair.target.geometry.vocab_size)
    plain = write_texts(setup.core(pair, SpeculationConfig("none"), room), prompts, 24, 0.0)
    core = setup.core(pair, SpeculationConfig(policy=policy), room)
    assert write_texts(core, prompts, 24, 0.0) == plain
