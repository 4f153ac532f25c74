"""Acceptance by context: labels at their borders, and a request's rounds where they began."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerie.by_context import CONTEXTS, ByContext, at_most
from aerie.config import SpeculationConfig
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import Pair, core, finish_all


@pytest.mark.parametrize(
    ("context", "label"),
    [(0, "512"), (512, "512"), (513, "1024"), (65536, "65536"), (65537, "more")],
)
def test_a_context_belongs_to_the_first_bound_that_holds_it(context: int, label: str) -> None:
    assert at_most(CONTEXTS, context) == label


def test_lengths_are_of_what_was_met_shortest_first() -> None:
    one, other = ByContext(), ByContext()
    one.count(70_000, 1)
    other.count(100, 4)
    other.count(512, 1)
    assert ByContext.total([one, other]).lengths() == {
        "512": {"num_drafts": 2, "num_accepted_tokens": 5, "mean_acceptance_length": 3.5},
        "more": {"num_drafts": 1, "num_accepted_tokens": 1, "mean_acceptance_length": 2.0},
    }


def test_rounds_are_counted_where_they_began(pair: Pair, launcher: str) -> None:
    """A text that passes 512 tokens: both labels, and together all that was drafted."""
    long = replace(pair, limits=replace(pair.limits, context=560))
    chain = SpeculationConfig(top_k=1, depth=3, nodes=4)
    engine = core(long, speculation=chain, engine=launcher, n_pages=600, chunk=64)
    prompts = [[1 + i % 30 for i in range(n)] for n in (3, 500, 520)]
    ids = [
        engine.submit(prompt, SamplingParams(max_tokens=30, ignore_eos=True)) for prompt in prompts
    ]
    finish_all(engine)
    met = [engine.request(i).statistics for i in ids]
    for statistics in met:
        by = statistics.by_context
        assert by.drafts.total() == statistics.num_drafts > 0
        assert by.accepted.total() == statistics.num_accepted_tokens
    assert [sorted(statistics.by_context.drafts) for statistics in met] == [
        ["512"],
        ["1024", "512"],
        ["1024"],
    ]
