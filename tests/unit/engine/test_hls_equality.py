"""The hls backend decodes as the reference does: the same trees and tokens, round by round."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.engine.engine import EngineCore
from aerie.kernels import catalogue
from aerie.kernels.registry import Kernels
from tests.parity.backend import runnable
from tests.unit.engine.cores import CHEAP, PLAIN, PLANNERS, SPECULATION, Pair, core, load_pair
from tests.unit.engine.test_lossless import SAMPLING, make_jobs

# Every policy and proposer under every way of sampling, and under the rule of coins with the ways
# it knows; each of them with prompts of its own, in a batch of 1 to 8.
POLICIES = {"plain": PLAIN, **SPECULATION}
RUNS = [(policy, sampling, "match") for policy in POLICIES for sampling in SAMPLING]
RUNS += [(policy, sampling, "coins") for policy in POLICIES for sampling in ("greedy", "warm")]
LEAST_RUNS = 48


@pytest.fixture(scope="module")
def quick_pair(pair_directory: Path) -> Pair:
    """Both engines run the same batches, so nothing needs the slow numerics."""
    return load_pair(pair_directory, "fast")


def counting(calls: Counter[str]) -> Callable[[Kernels], Kernels]:
    """A tap that counts every call by the kernel's number."""

    def tap(kernels: Kernels) -> Kernels:
        def counted(name: str) -> Any:
            def call(**arguments: Any) -> Any:
                calls[catalogue()[name].number] += 1
                return kernels[name](**arguments)

            return call

        return {name: counted(name) for name in kernels}  # type: ignore[return-value]

    return tap


def engine_of(pair: Pair, policy: str, rule: str, **settings: Any) -> EngineCore:
    return core(
        pair,
        "fast",
        engine="direct",
        speculation=replace(POLICIES[policy], rule=rule),
        planner=PLANNERS.get(policy, CHEAP),
        **settings,
    )


def assert_same_round(left: EngineCore, right: EngineCore) -> None:
    """All that a round leaves: trees, choices, lengths, what is kept, what is told, and the KV."""
    ours, theirs = left.parts, right.parts
    pairs = {
        "report": (ours.state.report.flat, theirs.state.report.flat),
        "chosen": (ours.state.chosen, theirs.state.chosen),
        "lengths": (ours.state.seq_len, theirs.state.seq_len),
        "kept rows": (ours.state.kept.count, theirs.state.kept.count),
        "kept tokens": (ours.state.kept.tokens, theirs.state.kept.tokens),
        "features": (ours.state.kept.taps, theirs.state.kept.taps),
        "keys": (ours.pool.keys, theirs.pool.keys),
        "values": (ours.pool.values, theirs.pool.values),
    }
    for name, array in ours.state.store.arrays.items():
        pairs[name] = array, theirs.state.store.arrays[name]
    for name, (own, other) in pairs.items():
        assert torch.equal(own, other), name
    assert dict(left.launcher.trees) == dict(right.launcher.trees)


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
        engine_of(quick_pair, policy, rule, backend=name, max_batch=max_batch)
        for name in ("reference", backend)
    ]
    for engine in engines:
        for prompt, params in jobs:
            engine.submit(prompt, params)
    reference, other = engines
    while not reference.is_idle:
        reference.step()
        other.step()
        assert_same_round(reference, other)
    assert other.is_idle
    for index in range(len(jobs)):
        assert reference.request(index).output == other.request(index).output


@pytest.fixture(scope="module")
def calls_a_round(quick_pair: Pair) -> Counter[str]:
    """Calls of every kernel of a planned tree, by number, in whole rounds; K5 is of rule coins."""
    found: Counter[str] = Counter()
    for rule in ("match", "coins"):
        calls: Counter[str] = Counter()
        engine = engine_of(quick_pair, "planned", rule, backend="hls", tap=counting(calls))
        for prompt, params in make_jobs(random.Random(7), 3, "warm"):
            engine.submit(prompt, replace(params, max_tokens=20, ignore_eos=True))
        n_rounds = 0
        while not engine.is_idle:
            engine.step()
            n_rounds += bool(engine.launcher.trees)
        assert n_rounds > 4
        found |= Counter({number: count // n_rounds for number, count in calls.items()})
    return found


@pytest.mark.parametrize("backend", [runnable("hls")])
@pytest.mark.parametrize("number", ["K1", "K2", "K3", "K4", "K5", "K6", "K7"])
def test_every_round_calls_each_of_the_seven(
    calls_a_round: Counter[str], backend: str, number: str
) -> None:
    assert calls_a_round[number] >= 1
