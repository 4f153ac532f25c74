"""Perf mode refuses whatever would quietly run more slowly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from aerie.api import Engine
from aerie.assemble.numerics import find_numerics
from aerie.bench.lane import relaunch
from aerie.config import EngineConfig, ModelConfig
from aerie.engine.buckets import Bucket
from aerie.engine.parts import Parts, Rule, Verdict
from aerie.errors import PerfModeError, UsageError
from aerie.kernels.status import Status
from aerie.requests.params import SamplingParams


def test_a_direct_launcher_and_a_cpu_are_refused() -> None:
    with pytest.raises(UsageError, match="perf_mode"):
        EngineConfig(ModelConfig(perf_mode=True), engine="direct")
    with pytest.raises(UsageError, match="GPU"):
        find_numerics(ModelConfig(perf_mode=True))
    with pytest.raises(UsageError, match="GPU"):
        Engine.load(perf_mode=True)


def test_on_a_gpu_a_missing_fast_path_is_named() -> None:
    slow = ModelConfig(device="cuda", dtype="bfloat16", perf_mode=True, attention="pytorch")
    with pytest.raises(UsageError, match="attention is pytorch"):
        find_numerics(slow)
    with pytest.raises(UsageError, match="linear is library"):
        find_numerics(ModelConfig(device="cuda", dtype="float32", perf_mode=True))


def doubtful(rule: Rule) -> Rule:
    """The same verdicts, but trees of more than their root are called broken."""

    def doubt(parts: Parts, bucket: Bucket, layout: Any, logits: Tensor) -> Verdict:
        verdict = rule(parts, bucket, layout, logits)
        broken = (layout.qo_indptr.diff() > 1).int() * int(Status.BROKEN_TREE)
        return replace(verdict, walk_status=broken[: bucket.seats])

    return doubt


@pytest.mark.parametrize("launcher", ["direct", "graphs"])
def test_a_failed_round_ends_the_run(launcher: str) -> None:
    """A tree that cannot be verified costs one round on the root alone; in perf mode, the run."""
    engine = Engine.load(speculation={"top_k": 1, "depth": 2, "nodes": 3}, engine=launcher)
    core, asked = engine.core, ("def", SamplingParams(max_tokens=3))
    tokens = engine.generate(*asked)[0].token_ids
    relaunch(core, replace(core.parts, rule=doubtful(core.parts.rule)))
    assert engine.generate(*asked)[0].token_ids == tokens
    strict = replace(core.config.model, perf_mode=True)
    core.config = replace(core.config, model=strict, engine="graphs")
    engine.submit(*asked)
    with pytest.raises(PerfModeError, match="BROKEN_TREE"):
        while not core.is_idle:
            core.step()
