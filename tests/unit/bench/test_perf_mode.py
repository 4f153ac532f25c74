"""Perf mode refuses whatever would quietly run more slowly."""

from __future__ import annotations

import pytest

from aerie.api import Engine
from aerie.assemble_numerics import find_numerics
from aerie.config import EngineConfig, ModelConfig
from aerie.engine.decision import Decision
from aerie.engine.params import SamplingParams
from aerie.errors import PerfModeError, UsageError


def test_an_eager_engine_and_a_cpu_are_refused() -> None:
    with pytest.raises(UsageError, match="perf_mode"):
        EngineConfig(ModelConfig(perf_mode=True), engine="eager")
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


def test_a_failed_round_ends_the_run() -> None:
    engine = Engine.load(speculation={"method": "none"})
    core = engine.core
    request = core.request(engine.submit("def", SamplingParams(max_tokens=2)))
    broken = Decision(n_nodes=3, failure="broken tree")
    assert core._write(request, broken) == []  # one more try on the root alone
    object.__setattr__(core.config.model, "perf_mode", True)
    with pytest.raises(PerfModeError, match="broken tree"):
        core._write(request, broken)
