"""Captured rounds made of Triton launches give the same tokens and the same drafts."""

from __future__ import annotations

import pytest

import tests.interpreted  # noqa: F401
from aerie.config import GraphConfig, SpeculationConfig
from aerie.requests.params import SamplingParams
from aerie.requests.request import Statistics
from tests.unit.engine.cores import CHEAP, Pair, core, finish_all

pytest.importorskip("triton")

# One bucket of each kind: every size is another interpreted kernel.
BUCKETS = GraphConfig(slots=(2,), rows=(32,), chunks=(32,), columns=(64,))


SHAPES = {
    "fixed": SpeculationConfig(top_k=3, depth=3, nodes=7),
    "planner": SpeculationConfig(policy="planner", top_k=2, depth=3, nodes=6),
}


@pytest.mark.parametrize("policy", SHAPES)
def test_same_rounds_as_the_definitions(pair: Pair, policy: str) -> None:
    found: list[tuple[list[int], Statistics]] = []
    for backend in ("pytorch", "triton"):
        engine = core(
            pair,
            speculation=SHAPES[policy],
            planner=CHEAP,
            engine="graphs",
            graphs=BUCKETS,
            backend=backend,
        )
        ids = [engine.submit(prompt, SamplingParams(max_tokens=5)) for prompt in ([1, 2], [7] * 5)]
        finish_all(engine)
        for request_id in ids:
            request = engine.request(request_id)
            found.append((request.output, request.statistics))
    assert found[:2] == found[2:]
