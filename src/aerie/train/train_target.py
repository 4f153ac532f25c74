"""Trains the target: short windows first, then a growing share of long ones, on one schedule."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.train.acceleration import accelerated_pieces
from aerie.train.batches import Batches, Stage
from aerie.train.corpus import Corpus
from aerie.train.loop import LoopPlan, LoopState, train
from aerie.train.optimizers import Optimizers, OptimizerSettings, count_parameters
from aerie.train.progress import Budget, Progress
from aerie.train.target_model import PLAIN, TargetModel, TargetRunner, TargetShape, TurnTable
from aerie.train.tokenizer import END_ID

SHORT, MIDDLE, LONG, LONGEST = 1024, 4096, 17_408, 34_816

# Attention makes a row at 34,816 cost about eight times one at 1,024, so long windows come late,
# when the learning rate is falling anyway, and short ones never stop.
STAGES = (
    Stage(0.0, {SHORT: 1.0}),
    Stage(0.55, {SHORT: 0.6, MIDDLE: 0.4}),
    Stage(0.72, {SHORT: 0.35, MIDDLE: 0.25, LONG: 0.2, LONGEST: 0.2}),
)


@dataclass(frozen=True)
class TargetPlan:
    """Everything that decides how the target is trained."""

    seconds: float
    shape: TargetShape = field(default_factory=TargetShape)
    n_rows: int = 4 * LONGEST  # tokens a step
    stages: tuple[Stage, ...] = STAGES
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    steps: int | None = None
    seed: int = 1
    device: str = "cuda"
    checkpoints: Path | None = None
    is_resumed: bool = False


@dataclass(frozen=True, eq=False)
class TargetJob:
    """The loop's view of target training."""

    model: TargetModel
    runner: TargetRunner
    batches: Batches

    def next_loss(self, fraction: float) -> tuple[Tensor, int]:
        """Loss of a fresh batch."""
        inputs, targets = self.batches.draw(fraction)
        return self.runner.loss(inputs, targets), inputs.numel()


def activation_dtype(device: str) -> torch.dtype:
    """bf16 where there are matrix units for it."""
    return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32


def train_target(
    corpus: Corpus, plan: TargetPlan, progress: Progress
) -> tuple[TargetModel, LoopState]:
    """Train from scratch; compilation happens before the budget begins to count."""
    torch.manual_seed(plan.seed)
    model = TargetModel(plan.shape).to(plan.device)
    progress.say(f"target: {count_parameters(model.parameters()) / 1e6:.2f} M parameters")
    batches = Batches(corpus.train.tokens, plan.n_rows, plan.stages, plan.seed, plan.device)
    turns = TurnTable(plan.shape, plan.device)
    runner = TargetRunner(model, turns, PLAIN, activation_dtype(plan.device))
    examples = [batches.draw_length(n)[0] for n in sorted(batches.sources)]
    with progress.phase("choose pieces"):
        pieces = accelerated_pieces(runner, examples, progress)
        runner = TargetRunner(model, turns, pieces, runner.dtype)
        batches.stages = _usable_stages(runner, examples, plan.stages, progress)
    optimizers = Optimizers(model, plan.optimizer)
    loop = LoopPlan("target", Budget(plan.seconds, plan.steps), plan.checkpoints, plan.is_resumed)
    state = train(TargetJob(model, runner, batches), optimizers, loop, progress)
    return model, state


def _usable_stages(
    runner: TargetRunner, examples: Sequence[Tensor], stages: tuple[Stage, ...], progress: Progress
) -> tuple[Stage, ...]:
    """Try a step of every length now: one that fails is left out rather than met half-way."""
    failed = set()
    for example in examples:
        try:
            runner.loss(example, example).backward()
        except RuntimeError as error:
            progress.say(f"length {example.shape[1]} does not run and is left out: {error!r:.300}")
            failed.add(example.shape[1])
        for param in runner.model.parameters():
            param.grad = None
    kept = [{n: w for n, w in stage.weights.items() if n not in failed} for stage in stages]
    return tuple(
        Stage(stage.begins, weights) for stage, weights in zip(stages, kept, strict=True) if weights
    )


def rounded(model: TargetModel, device: str) -> TargetModel:
    """A copy whose weights are what will be shipped, in the dtype the device computes in."""
    return copy.deepcopy(model).to(torch.bfloat16).to(activation_dtype(device))


@torch.inference_mode()
def heldout_loss(
    runner: TargetRunner, tokens: NDArray[np.uint16], length: int, max_tokens: int
) -> float:
    """Mean loss in nats a token over the stream cut into windows of `length`, END_ID in front."""
    device = runner.model.embed_tokens.device
    n_windows = max(1, min(tokens.shape[0] - 1, max_tokens) // length)
    length = min(length, tokens.shape[0] - 1)
    losses: list[float] = []
    at_once = max(1, 65_536 // length)
    for first in range(0, n_windows, at_once):
        chosen = range(first, min(n_windows, first + at_once))
        windows = np.stack([tokens[i * length : i * length + length + 1] for i in chosen])
        batch = torch.from_numpy(windows.astype(np.int64)).to(device)
        inputs, targets = batch[:, :-1].clone(), batch[:, 1:]
        inputs[:, 0] = END_ID
        losses += [float(runner.loss(inputs, targets))] * len(chosen)
    return sum(losses) / len(losses)
