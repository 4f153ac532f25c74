"""Perf mode refuses whatever would quietly run more slowly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from aerie.api import Engine
from aerie.assemble_numerics import find_numerics
from aerie.config import EngineConfig, ModelConfig
from aerie.engine.params import SamplingParams
from aerie.engine.request import Request
from aerie.engine.verify import Verify
from aerie.errors import PerfModeError, UsageError
from aerie.kernels.registry import Kernels
from aerie.kernels.status import Status
from aerie.speculation.tree import Layout, Verdict


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


def doubtful(verify: Verify) -> Verify:
    """The same verdicts, but trees of more than their root are called broken."""

    def doubt(
        kernels: Kernels, requests: Sequence[Request], layout: Layout, logits: Tensor, depth: int
    ) -> Verdict:
        verdict = verify(kernels, requests, layout, logits, depth)
        n_rows = layout.qo_indptr.diff()
        return replace(verdict, status=(n_rows > 1).int() * int(Status.BROKEN_TREE))

    return doubt


def test_a_failed_round_ends_the_run() -> None:
    """A tree that cannot be verified costs one round on the root alone; in perf mode, the run."""
    engine = Engine.load(speculation={"top_k": 1, "depth": 2, "nodes": 3}, engine="eager")
    core, asked = engine.core, ("def", SamplingParams(max_tokens=3))
    tokens = engine.generate(*asked)[0].token_ids
    core.parts = replace(core.parts, verify=doubtful(core.parts.verify))
    assert engine.generate(*asked)[0].token_ids == tokens
    strict = replace(core.config.model, perf_mode=True)
    core.config = replace(core.config, model=strict, engine="graphs")
    engine.submit(*asked)
    with pytest.raises(PerfModeError, match="BROKEN_TREE"):
        while not core.is_idle:
            core.step()
