"""The loop: budgets, going back after a bad step, and resuming."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aerie.train import loop
from aerie.train.loop import LoopPlan, train
from aerie.train.optimizers import Optimizers, OptimizerSettings
from aerie.train.progress import Budget, Progress, linear_decay


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 3))
        self.norm = nn.Parameter(torch.ones(3))


@dataclass
class FakeJob:
    """Pulls a matrix towards a constant; can return a loss that is not a number."""

    model: Line = field(default_factory=Line)
    bad_steps: tuple[int, ...] = ()
    count: int = 0

    def next_loss(self, fraction: float) -> tuple[Tensor, int]:
        self.count += 1
        loss = (self.model.weight - 0.5).square().mean() + (self.model.norm - 1).square().mean()
        return (loss * float("nan") if self.count in self.bad_steps else loss), 10


def run(job: FakeJob, plan: LoopPlan) -> tuple[loop.LoopState, list[str]]:
    lines: list[str] = []
    optimizers = Optimizers(job.model, OptimizerSettings())
    return train(job, optimizers, plan, Progress(write=lines.append)), lines


def test_steps_and_tokens_are_counted() -> None:
    job = FakeJob()
    state, _ = run(job, LoopPlan("line", Budget(0.0, steps=40)))
    assert (state.step, state.tokens, job.count) == (40, 400, 40)
    assert job.next_loss(0.0)[0] < 0.2


def test_seconds_end_a_run() -> None:
    state, _ = run(FakeJob(), LoopPlan("line", Budget(0.2)))
    assert state.step > 1
    assert 0.2 <= state.seconds < 5.0


def test_goes_back_to_good_weights_after_a_bad_loss() -> None:
    job = FakeJob(bad_steps=(11,))
    state, lines = run(job, LoopPlan("line", Budget(0.0, steps=60)))
    assert state.rate_scale == 0.5
    assert any("went back" in line for line in lines)
    assert bool(torch.isfinite(job.model.weight).all())


def test_resumes_where_a_checkpoint_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    first = FakeJob()
    run(first, LoopPlan("line", Budget(0.0, steps=10), tmp_path))
    again = FakeJob()
    plan = LoopPlan("line", Budget(0.0, steps=14), tmp_path, is_resumed=True)
    state, lines = run(again, plan)
    assert (state.step, again.count) == (14, 4)
    assert any("resumed at step 10" in line for line in lines)


def test_resuming_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    plan = LoopPlan("line", Budget(0.0, steps=2), tmp_path, is_resumed=True)
    assert any("no checkpoint" in line for line in run(FakeJob(), plan)[1])


def test_linear_decay_rises_then_falls_to_zero() -> None:
    values = [linear_decay(f) for f in (0.0, 0.01, 0.02, 0.5, 1.0, 1.2)]
    assert values[0] == values[4] == values[5] == 0.0
    assert values[1] == pytest.approx(0.5)
    assert values[2] == pytest.approx(1.0)
    assert values[3] == pytest.approx(0.5 / 0.98)
