"""The training loop: a budget of seconds, progress lines, restarts, checkpoints."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from aerie.models.weights import open_checkpoint, save_tensors
from aerie.train.optimizers import Optimizers
from aerie.train.progress import Budget, Progress, linear_decay

REPORT_SECONDS = 5.0
SAVE_SECONDS = 60.0
READ_EVERY = 8  # steps between reads of the loss: each one waits for the device

STATE_FILE = "state.json"


class Job(Protocol):
    """What is trained: a model and the loss of its next batch."""

    @property
    def model(self) -> nn.Module:
        """The module whose parameters are trained."""
        ...

    def next_loss(self, fraction: float) -> tuple[Tensor, int]:
        """Draw a batch for this share of the budget; its mean loss and its tokens."""
        ...


@dataclass
class LoopState:
    """Where a run stands; written beside the weights of a checkpoint."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    rate_scale: float = 1.0  # halved each time the loss was not finite
    losses: list[tuple[float, float]] = field(default_factory=list)  # (fraction, loss)


@dataclass(frozen=True)
class LoopPlan:
    """How long to run and where to keep checkpoints (None: nowhere)."""

    name: str
    budget: Budget
    checkpoints: Path | None = None
    is_resumed: bool = False


def train(job: Job, optimizers: Optimizers, plan: LoopPlan, progress: Progress) -> LoopState:
    """Run the budget out; returns where it ended, with the losses along the way."""
    state = LoopState()
    if plan.is_resumed and plan.checkpoints is not None:
        state = _load_state(job.model, optimizers, plan.checkpoints, progress)
    plan.budget.restart(state.seconds)
    run = _Run(job, optimizers, plan, progress, state)
    while (fraction := plan.budget.fraction(state.step)) < 1.0:
        run.advance(fraction)
    run.read_losses(1.0)
    state.seconds = plan.budget.elapsed()
    progress.say(
        f"{plan.name}: done, {state.step} steps, {state.tokens / 1e6:.1f} M tokens in "
        f"{state.seconds:.1f} s"
    )
    return state


class _Run:
    """One run of the loop: what has to be remembered between steps."""

    def __init__(
        self, job: Job, optimizers: Optimizers, plan: LoopPlan, progress: Progress, state: LoopState
    ) -> None:
        self.job, self.optimizers, self.plan = job, optimizers, plan
        self.progress, self.state = progress, state
        self.unread: list[Tensor] = []
        self.untold: float | None = None  # the last one read, where it was not due yet
        self.kept = _copy(optimizers.params)
        self.reported = self.saved = time.monotonic()
        self.reported_tokens = state.tokens

    def advance(self, fraction: float) -> None:
        """One step, and whatever is due after it."""
        state = self.state
        loss, n_tokens = self.job.next_loss(fraction)
        loss.backward()
        self.optimizers.step(linear_decay(fraction) * state.rate_scale)
        self.unread.append(loss.detach())
        state.step += 1
        state.tokens += n_tokens
        if state.step % READ_EVERY == 0 or state.step < READ_EVERY:
            self.read_losses(fraction)
        now = time.monotonic()
        if self.plan.checkpoints is not None and now - self.saved > SAVE_SECONDS:
            state.seconds = self.plan.budget.elapsed()
            _save_state(self.job.model, self.optimizers, state, self.plan.checkpoints)
            self.saved = now

    def read_losses(self, fraction: float) -> None:
        """Wait for the device; go back to the last good weights if the loss went wrong."""
        if self.unread:
            value = torch.stack(self.unread).mean().item()
            self.unread.clear()
            if not math.isfinite(value):
                self.state.rate_scale *= 0.5
                _restore(self.optimizers, self.kept)
                self.progress.say(
                    f"{self.plan.name}: loss {value} at step {self.state.step}; went back to the "
                    f"last good weights, rates × {self.state.rate_scale}"
                )
                return
            self.untold = value
        now = time.monotonic()
        is_due = now - self.reported > REPORT_SECONDS or self.state.step <= 1 or fraction >= 1.0
        if is_due and self.untold is not None:
            rate = (self.state.tokens - self.reported_tokens) / max(now - self.reported, 1e-9)
            self.progress.say(
                f"{self.plan.name}: {100 * fraction:5.1f} %  step {self.state.step}  loss "
                f"{self.untold:.4f}  {rate / 1e3:.0f} k tokens/s"
            )
            self.state.losses.append((round(fraction, 4), round(self.untold, 4)))
            self.reported, self.reported_tokens = now, self.state.tokens
            self.kept = _copy(self.optimizers.params)
            self.untold = None


def _save_state(model: nn.Module, optimizers: Optimizers, state: LoopState, folder: Path) -> None:
    """Write a checkpoint; the old one stays valid until the new one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {
        f"model.{name}": param for name, param in model.named_parameters()
    }
    tensors |= optimizers.state()
    # Clones: a tensor must own its memory to be written.
    owned = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    fresh = folder / "fresh"
    fresh.mkdir(exist_ok=True)
    save_tensors(fresh / "model.safetensors", owned, {"format": "pt"})
    (fresh / "model.safetensors").replace(folder / "model.safetensors")
    (folder / STATE_FILE).write_text(json.dumps(state.__dict__), encoding="utf-8")


def _load_state(
    model: nn.Module, optimizers: Optimizers, folder: Path, progress: Progress
) -> LoopState:
    """Continue from a checkpoint, or begin afresh and say so if there is none."""
    path = folder / STATE_FILE
    if not path.is_file():
        progress.say("no checkpoint to resume from; beginning afresh")
        return LoopState()
    files = open_checkpoint(folder)
    tensors = {name: files.view(name) for name in files.entries}
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(tensors[f"model.{name}"])
    optimizers.restore(tensors)
    values = json.loads(path.read_text(encoding="utf-8"))
    progress.say(f"resumed at step {values['step']}, {values['seconds']:.0f} s spent")
    return LoopState(**values)


def _copy(params: list[nn.Parameter]) -> list[Tensor]:
    return [param.detach().clone() for param in params]


@torch.no_grad()
def _restore(optimizers: Optimizers, kept: list[Tensor]) -> None:
    for param, good in zip(optimizers.params, kept, strict=True):
        param.copy_(good)
    for momentum in optimizers.muon.momenta:
        momentum.zero_()
    optimizers.adam.state.clear()
