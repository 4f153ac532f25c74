"""Previews on a GPU: captured rounds over a part of the KV write plain decoding's tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from aerie.bench.lane import captured
from aerie.bench.round.setup import RoundSetup, read_prompts
from aerie.bench.round.texts import POLICIES, lossless_room
from aerie.config import PartialConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.models.inflate.embed import LargePair
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request
from tests.gpu.test_rounds import SETUP

pytestmark = pytest.mark.gpu

BATCH, N_PROMPTS, PROMPT, N_NEW = 4, 6, 1024, 64
# A quarter of a text's blocks, so that some previews hold and some break.
PART = PartialConfig(
    specpv="lossless",
    n_sink_blocks=1,
    n_retrieval_blocks=14,
    n_window_blocks=2,
    n_spec_tokens_buf=24,
    partial_threshold=256,
)
PARTS = {
    "by mass": PART,
    "by bounds": replace(PART, specpv_select="bounds"),
    "of everything": replace(PART, n_retrieval_blocks=128),
}
CHAIN = SpeculationConfig(top_k=1, depth=4, nodes=5)
WAYS = {
    "float32": SETUP,
    "exact bfloat16": replace(
        SETUP, dtype="bfloat16", geometry="llama-3.1-8b", numerics="exact", foreign_costs=True
    ),
}


@cache
def pair(way: str) -> LargePair:
    return WAYS[way].load()


def core(way: str, speculation: SpeculationConfig, part: PartialConfig) -> EngineCore:
    setup: RoundSetup = WAYS[way]
    room = replace(lossless_room(BATCH, PROMPT + N_NEW), partial=part)
    return setup.core(pair(way), speculation, room)


def write(engine: EngineCore) -> list[Request]:
    """Half are sampled; some come while others decode."""
    prompts = read_prompts(N_PROMPTS, PROMPT, pair("float32").target.geometry.vocab_size)
    ids = []
    for number, prompt in enumerate(prompts):
        asked = {"temperature": 0.8 * (number % 2), "seed": number, "ignore_eos": True}
        params = SamplingParams(N_NEW, **asked)  # type: ignore[arg-type]
        ids.append(engine.submit(prompt[: PROMPT - 30 * number], params))
        if number >= BATCH:
            engine.step()
    while not engine.is_idle:
        engine.step()
    return [engine.forget(request_id) for request_id in ids]


@cache
def plain_texts(way: str) -> list[list[int]]:
    return [r.output for r in write(core(way, POLICIES["plain"], PartialConfig()))]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("way", WAYS)
def test_same_tokens_as_plain_decoding(way: str, part: str) -> None:
    engine = core(way, CHAIN, PARTS[part])
    found = write(engine)
    assert [request.output for request in found] == plain_texts(way)
    taken = [request.statistics.previews for request in found]
    assert sum(own.tokens for own in taken) > N_NEW, "most tokens come from previews"
    if part == "of everything":
        # What the end of a text cuts off counts as judged and does not hold.
        assert sum(own.held for own in taken) >= 0.95 * sum(own.judged for own in taken)
    counts = captured(engine).graphs.counts
    assert counts.replays > 0 or not captured(engine).parts.table.is_cuda
