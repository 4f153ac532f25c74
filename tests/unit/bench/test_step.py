"""Every moment of a step belongs to one phase, and the watching ends with the run."""

from __future__ import annotations

import pytest

from aerie import assemble_choices
from aerie.assemble_choices import choose_backend
from aerie.bench.engine import step
from aerie.bench.engine.step import ORDER, PHASES, Stopwatch, open_engine, run_steps
from aerie.config import EngineConfig, ModelConfig


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


def test_an_inner_call_takes_its_time_from_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watch = Clock(), Stopwatch()
    monkeypatch.setattr(step, "time", clock)

    def spend(seconds: float) -> None:
        clock.now += seconds

    inner = watch.kind(lambda: spend(0.25), "products")

    def outer() -> None:
        spend(0.5)
        inner()
        spend(0.125)

    watch.phase(outer, "target")()
    spend(9.0)  # between two phases: nobody's
    watch.phase(inner, "verify")()
    assert watch.take() == {
        ("target", "rest"): 625.0,
        ("target", "products"): 250.0,
        ("verify", "rest"): 0.0,
        ("verify", "products"): 250.0,
    }
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


def test_kernels_are_chosen_by_device_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = choose_backend(EngineConfig())
    assert (on_cpu.value, on_cpu.origin) == ("numpy", "automatic")
    assert on_cpu.reason
    asked = choose_backend(EngineConfig(backend="reference"))
    assert (asked.value, asked.origin) == ("reference", "config")
    on_a_gpu = EngineConfig(model=ModelConfig(device="cuda:0"))
    for obstacle, backend in ((None, "triton"), ("triton is not installed", "pytorch")):
        monkeypatch.setattr(assemble_choices, "why_unavailable", lambda info, found=obstacle: found)
        chosen = choose_backend(on_a_gpu)
        assert (chosen.value, chosen.origin) == (backend, "automatic")
        assert obstacle is None or chosen.reason == obstacle
