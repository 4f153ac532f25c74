"""The hls backend decodes as the reference does: the same trees and tokens, step by step."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.engine.engine import EngineCore
from tests.parity.backend import runnable
from tests.unit.engine.cores import CHEAP, Pair, core, load_pair
from tests.unit.engine.test_lossless import PLAIN, PLANNERS, SAMPLING, SPECULATION, make_jobs

# Every policy and proposer under every way of sampling, and under the rule of coins with the ways
# it knows; each of them with prompts of its own, in a batch of 1 to 8.
POLICIES = {"plain": PLAIN, **SPECULATION}
RUNS = [(policy, sampling, "match") for policy in POLICIES for sampling in SAMPLING]
RUNS += [(policy, sampling, "coins") for policy in POLICIES for sampling in ("greedy", "warm")]
LEAST_RUNS = 50


@pytest.fixture(scope="module")
def quick_pair(pair_directory: Path) -> Pair:
    """Both engines run the same batches, so nothing needs the slow numerics."""
    return load_pair(pair_directory, "fast")


def engine_of(pair: Pair, backend: str, policy: str, rule: str, max_batch: int) -> EngineCore:
    return core(
        pair,
        "fast",
        backend=backend,
        speculation=replace(POLICIES[policy], rule=rule),
        planner=PLANNERS.get(policy, CHEAP),
        max_batch=max_batch,
    )


# Everything a step decides; how long it took is not part of it.
DECISIONS = ("tree", "chosen", "layout", "logits", "taps", "verdict", "commit")


def assert_same(name: str, left: Any, right: Any) -> None:
    """Every tensor of two values, by name."""
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and torch.equal(left, right), name
        return
    entries = left._fields if hasattr(left, "_fields") else [f.name for f in fields(left)]
    for entry in entries:
        assert_same(f"{name}.{entry}", getattr(left, entry), getattr(right, entry))


def test_there_are_enough_runs() -> None:
    assert len(RUNS) >= LEAST_RUNS


@pytest.mark.parametrize("backend", [runnable("hls")])
@pytest.mark.parametrize(("policy", "sampling", "rule"), RUNS)
def test_same_trees_and_tokens(
    quick_pair: Pair, backend: str, policy: str, sampling: str, rule: str
) -> None:
    number = RUNS.index((policy, sampling, rule))
    rng = random.Random(number)
    jobs = make_jobs(rng, 1 + number % 8, sampling)
    max_batch = rng.choice([3, 8])
    engines = [
        engine_of(quick_pair, name, policy, rule, max_batch) for name in ("reference", backend)
    ]
    for engine in engines:
        for prompt, params in jobs:
            engine.submit(prompt, params)
    reference, other = engines
    while not reference.is_idle:
        reference.step()
        other.step()
        for part in DECISIONS:
            expected, found = getattr(reference.last_outcome, part), other.last_outcome
            assert_same(part, expected, getattr(found, part))
    assert other.is_idle
    for index in range(len(jobs)):
        assert reference.request(index).output == other.request(index).output
