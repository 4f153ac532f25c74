"""Previews: rounds over a part of the KV inside a draft change no token of a lossless engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aerie.config import PartialConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.errors import UsageError
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import CHEAP, Pair, core, finish_all, outputs
from tests.unit.engine.random_runs import PLAIN

# Small enough that a text of 30 tokens has more blocks than are looked at.
PARTIAL = PartialConfig(
    specpv="lossless",
    specpv_block_size=2,
    n_sink_blocks=1,
    n_retrieval_blocks=2,
    n_window_blocks=2,
    partial_threshold=4,
    n_dense_layers=2,
)
POLICIES = {
    "chain": SpeculationConfig(top_k=1, depth=4, nodes=5),
    "tree": SpeculationConfig(top_k=3, depth=3, nodes=12),
    "merged": SpeculationConfig(method="eagle3+ngram", top_k=2, depth=3, nodes=9),
    "planned": SpeculationConfig(policy="planner", top_k=4, depth=4, nodes=20),
}
PROMPTS = [[(7 * i + 3 * i * i + seed) % 61 for i in range(30 + seed)] for seed in range(5)]


def jobs(**asked: Any) -> list[tuple[list[int], SamplingParams]]:
    return [
        (prompt, SamplingParams(max_tokens=24, seed=seed, ignore_eos=True, **asked))
        for seed, prompt in enumerate(PROMPTS)
    ]


def taken(engine: EngineCore) -> int:
    """Tokens that previews left for full passes, all requests together."""
    return sum(r.statistics.previewed for r in engine._requests.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("asked", [{}, {"temperature": 0.8, "top_p": 0.9}], ids=["greedy", "warm"])
def test_tokens_are_those_of_plain_decoding(
    pair: Pair, launcher: str, policy: str, asked: dict[str, Any]
) -> None:
    plain = outputs(core(pair, speculation=PLAIN), jobs(**asked))
    engine = core(
        pair, speculation=POLICIES[policy], partial=PARTIAL, engine=launcher, planner=CHEAP
    )
    assert outputs(engine, jobs(**asked)) == plain
    if policy != "planned":
        assert taken(engine) > 0
