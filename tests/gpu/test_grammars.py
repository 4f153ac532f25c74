"""Grammars on a GPU: rounds that the host looks into, recorded, write plain decoding's tokens."""

from __future__ import annotations

from functools import cache

import pytest

from aerie.bench.lane import captured
from aerie.bench.round.setup import read_prompts
from aerie.bench.round.texts import lossless_room
from aerie.engine.engine import EngineCore
from aerie.engine.sampler import CONSTRAINED
from aerie.requests.params import SamplingParams
from tests.gpu.test_rounds import (
    BATCH,
    N_NEW,
    N_PROMPTS,
    PROMPT,
    PROPOSERS,
    SETUP,
    pair,
    plain_core,
)
from tests.unit.engine.automata import Automaton, submit

pytestmark = pytest.mark.gpu


def write(engine: EngineCore) -> list[list[int]]:
    """Two of three have a grammar, half are sampled, some come while others decode."""
    ids = []
    for number, prompt in enumerate(
        read_prompts(N_PROMPTS, PROMPT, pair().target.geometry.vocab_size)
    ):
        grammar = None if number % 3 == 2 else Automaton(f"gpu{number}")
        asked = {"temperature": 0.8 * (number % 2), "seed": number, "ignore_eos": grammar is None}
        params = SamplingParams(N_NEW, grammar=grammar, **asked)  # type: ignore[arg-type]
        ids.append(submit(engine, prompt[: PROMPT - 3 * number], params))
        if number >= BATCH:
            engine.step()
    while not engine.is_idle:
        engine.step()
    return [engine.forget(request_id).output for request_id in ids]


@cache
def plain_texts() -> list[list[int]]:
    return write(plain_core())


@pytest.mark.parametrize("is_ahead", [False, True], ids=["as needed", "recorded ahead"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_same_tokens_as_plain_constrained_decoding(proposer: str, is_ahead: bool) -> None:
    engine = SETUP.core(pair(), PROPOSERS[proposer], lossless_room(BATCH, PROMPT + N_NEW))
    launcher = captured(engine)
    if is_ahead:
        launcher.graphs.is_warm = True
        for n_requests in (1, 2, BATCH):
            launcher.record(n_requests, PROMPT + N_NEW, CONSTRAINED)
    assert write(engine) == plain_texts()
    assert write(engine) == plain_texts(), "the second time from recordings alone"
    assert launcher.graphs.counts.replays > 0 or not launcher.parts.table.is_cuda
