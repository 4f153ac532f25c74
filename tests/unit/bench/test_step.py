"""Every moment of a step belongs to one phase, and the watching ends with the run."""

from __future__ import annotations

import time

import pytest

from aerie.assemble_choices import choose_backend
from aerie.bench.engine.step import ORDER, PHASES, Stopwatch, open_engine, run_steps
from aerie.config import EngineConfig, ModelConfig


def test_an_inner_call_takes_its_time_from_the_outer_one() -> None:
    watch = Stopwatch()
    inner = watch.kind(lambda: time.sleep(0.02), "products")

    def outer() -> None:
        time.sleep(0.01)
        inner()

    watch.phase(outer, "target")()
    spent = watch.take()
    assert set(spent) == {("target", "rest"), ("target", "products")}
    assert spent["target", "products"] >= 20
    assert 10 <= spent["target", "rest"] < spent["target", "products"]
    assert watch.take() == {}


@pytest.mark.parametrize("method", ["plain", "chain5"])
def test_phases_add_up_to_the_step(method: str) -> None:
    originals = [getattr(owner, name) for owner, name, _ in PHASES]
    core = open_engine(method, 2).core
    series = run_steps(core, [list(range(5, 25)), list(range(9, 40))], 3)
    assert [getattr(owner, name) for owner, name, _ in PHASES] == originals
    assert core.is_idle
    assert len(series.steps) == 3
    assert series.tokens_per_step >= 1
    assert {phase for step in series.steps for phase, _ in step} <= set(ORDER)
    found = series.payload()
    assert found["phases_ms"]["target"]["products"]["least"] > 0
    assert found["phases_ms"]["verify"]["kernels"]["least"] > 0
    assert (found["phases_ms"]["grow"]["kernels"]["least"] > 0) == (method == "chain5")
    total = sum(min(series.spent(phase)) for phase in ORDER)
    assert 0 < total <= found["step_ms"]["median"]


def test_kernels_are_chosen_by_device_and_say_why() -> None:
    on_cpu = choose_backend(EngineConfig())
    assert (on_cpu.value, on_cpu.origin) == ("numpy", "automatic")
    assert on_cpu.reason
    on_gpu = choose_backend(EngineConfig(model=ModelConfig(device="cuda:0")))
    assert on_gpu.value in ("triton", "pytorch")
    asked = choose_backend(EngineConfig(backend="reference"))
    assert (asked.value, asked.origin) == ("reference", "config")
