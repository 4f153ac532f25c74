"""Rounds on a GPU: plain decoding's tokens, whatever drafts and whatever is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.lane import Lanes, captured, shape_config
from aerie.bench.rivals import Cast
from aerie.bench.round.setup import Room, RoundSetup, abandon, read_prompts, start
from aerie.bench.round.speed import run_without_waiting, step_to_room
from aerie.bench.round.texts import POLICIES, lossless_room
from aerie.config import SpeculationConfig
from aerie.costs.table import load_costs
from aerie.engine.engine import EngineCore
from aerie.engine.sampler import EVERYTHING, GREEDY
from aerie.models.inflate.embed import LargePair
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request
from aerie.speculation.policy import TreeShape
from tests.unit.bench.outside import OutsideGraphs

# To watch for waits is a prototype of torch's, and it says so once.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]

COSTS = Path(__file__).parents[1] / "data" / "costs_cheap.json"
SETUP = RoundSetup(
    dtype="float32", geometry=None, backend="triton", costs=str(COSTS), foreign_costs=True
)
PLAIN = replace(SETUP, backend="pytorch", engine="direct")
PROPOSERS = {
    **POLICIES,
    "ngram": SpeculationConfig(method="ngram", top_k=1, depth=5, nodes=6),
    "head and ngram": SpeculationConfig(method="eagle3+ngram", top_k=4, depth=4, nodes=16),
}
BATCH, N_PROMPTS, PROMPT, N_NEW = 4, 6, 40, 32
WARM: dict[str, Any] = {"temperature": 0.8}
# Frequent tokens of source code end a text early, but not before `min_tokens`.
STOPS = tuple(range(16, 48))
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": WARM,
    "top_k": {**WARM, "top_k": 5},
    "top_p": {**WARM, "top_p": 0.7},
    "min_p": {**WARM, "min_p": 0.1},
    "penalties": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
    },
    "logit_bias": {"logit_bias": {11: 4.0, 12: -100.0, 200: 2.5}},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": STOPS},
    "logprobs": {**WARM, "logprobs": 5},
    "without drafts": {**WARM, "speculative": False},
    "everything": {
        **WARM,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.02,
        "logprobs": 2,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "logit_bias": {11: 1.0},
        "min_tokens": 5,
        "stop_token_ids": STOPS,
    },
}


@cache
def pair() -> LargePair:
    return SETUP.load()


@cache
def core(name: str) -> EngineCore:
    return SETUP.core(pair(), PROPOSERS[name], lossless_room(BATCH, PROMPT + N_NEW))


@cache
def plain_core() -> EngineCore:
    return PLAIN.core(pair(), POLICIES["plain"], lossless_room(BATCH, PROMPT + N_NEW))


def params_of(options: str, number: int) -> SamplingParams:
    """What a request asks for; "one of each": every request something else."""
    if options == "one of each":
        options = list(OPTIONS)[number % len(OPTIONS)]
    asked = OPTIONS[options]
    return SamplingParams(N_NEW, seed=number, ignore_eos=True, **asked)


def write(engine: EngineCore, options: str) -> list[Request]:
    """Requests with prompts of several lengths, some of them while others decode."""
    n_prompts = len(OPTIONS) if options == "one of each" else N_PROMPTS
    prompts = read_prompts(n_prompts, PROMPT, pair().target.geometry.vocab_size)
    ids = []
    for number, prompt in enumerate(prompts):
        ids.append(engine.submit(prompt[: PROMPT - 3 * number], params_of(options, number)))
        if number >= BATCH:
            engine.step()
    while not engine.is_idle:
        engine.step()
    return [engine.forget(request_id) for request_id in ids]


@cache
def plain_texts(options: str) -> list[Request]:
    return write(plain_core(), options)


@pytest.mark.parametrize("options", [*OPTIONS, "one of each"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_same_tokens_as_plain_decoding(proposer: str, options: str) -> None:
    found, expected = write(core(proposer), options), plain_texts(options)
    assert [request.output for request in found] == [request.output for request in expected]
    for own, plain in zip(found, expected, strict=True):
        assert own.ended == replace_id(plain, own)
        assert [s.logprob for s in own.scored] == pytest.approx(
            [s.logprob for s in plain.scored], abs=1e-3
        )
        assert len(own.scored) == (len(own.output) if own.params.logprobs is not None else 0)
        assert all(len(s.top) == (own.params.logprobs or 0) for s in own.scored)
    counts = captured(core(proposer)).graphs.counts
    assert counts.captures > 0 and counts.replays > 0


def replace_id(expected: Request, own: Request) -> Any:
    """How it must have ended."""
    assert expected.ended is not None
    return replace(expected.ended, request_id=own.job.request_id)


def test_the_options_do_something() -> None:
    """Texts of every option differ from greedy ones, or the comparison above says little."""
    greedy = [request.output for request in plain_texts("greedy")]
    for options in OPTIONS:
        if options not in ("greedy",):
            assert [request.output for request in plain_texts(options)] != greedy, options


@pytest.mark.parametrize("options", ["greedy", "everything"])
@pytest.mark.parametrize("policy", POLICIES)
def test_steady_rounds_wait_for_nothing_but_the_report(policy: str, options: str) -> None:
    engine = SETUP.core(pair(), POLICIES[policy], Room(1, 1024))
    for n_positions in (40, 500):
        variant = GREEDY if options == "greedy" else EVERYTHING
        captured(engine).record(1, n_positions, variant)
    asked = {name: own for name, own in OPTIONS[options].items() if name != "stop_token_ids"}
    ids = start(engine, read_prompts(1, 40, pair().target.geometry.vocab_size), 400, **asked)
    for _ in range(6):
        engine.step()
    step_to_room(engine, 128)
    assert run_without_waiting(engine, 8) is None
    with OutsideGraphs(engine) as counted:
        for _ in range(8):
            engine.step()
    assert not counted.kernels and not counted.copies
    abandon(engine, ids)


@pytest.mark.parametrize("backend", ["pytorch", "triton"])
@pytest.mark.parametrize("policy", ["planner", "cast"])
def test_policies_that_look_between_layers_may_be_called_on_a_gpu(
    policy: str, backend: str
) -> None:
    """Functions called one by one, over trees on a GPU that the host decides about."""
    setup = replace(SETUP, backend=backend, engine="direct")
    room = lossless_room(BATCH, PROMPT + N_NEW)
    engine = setup.core(pair(), SpeculationConfig(policy="planner"), room)
    if policy == "cast":
        shape, lanes = TreeShape(8, 8, 64), Lanes(engine)
        lanes.take(lanes.make(Cast(shape, load_costs(COSTS)), shape_config(shape)))
    found = [request.output for request in write(engine, "greedy")]
    assert found == [request.output for request in plain_texts("greedy")]
