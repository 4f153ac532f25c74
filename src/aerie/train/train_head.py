"""Trains the head: unrolled drafting against the target's own distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from aerie.train.acceleration import Loss, compile_function, fastest_pieces
from aerie.train.batches import Batches, Stage
from aerie.train.features import Features, FeatureSource
from aerie.train.head_model import (
    PLAIN_HEAD,
    HeadModel,
    HeadPieces,
    HeadRunner,
    HeadShape,
    band_attention,
    project_pair,
)
from aerie.train.loop import LoopPlan, LoopState, train
from aerie.train.optimizers import Optimizers, OptimizerSettings, count_parameters
from aerie.train.progress import Budget, Progress
from aerie.train.target_model import finish, linear, rms_norm
from aerie.train.train_target import LONG, LONGEST, MIDDLE, SHORT, activation_dtype

# Long contexts from the beginning: a head that saw only short ones fails beyond them.
STAGES = (Stage(0.0, {SHORT: 0.45, MIDDLE: 0.25, LONG: 0.18, LONGEST: 0.12}),)


@dataclass(frozen=True)
class UnrollPlan:
    """How drafting is unrolled and how its steps are weighed."""

    n_steps: int = 7
    decay: float = 0.9  # of a step's weight against the one before
    # Weight of a row whose draft has already left the text: such a chain would have been cut off
    # before this step, but a tree may still reach it by another branch.
    stray: float = 0.3
    hard_share: float = 0.5  # of the label that is the target's best token, for greedy acceptance


@dataclass(frozen=True)
class HeadPlan:
    """Everything that decides how a head is trained."""

    seconds: float
    shape: HeadShape
    unroll: UnrollPlan = field(default_factory=UnrollPlan)
    n_rows: int = 2 * LONGEST
    stages: tuple[Stage, ...] = STAGES
    optimizer: OptimizerSettings = field(
        default_factory=lambda: OptimizerSettings(matrix_rate=0.02, other_rate=2e-3)
    )
    steps: int | None = None
    seed: int = 2
    device: str = "cuda"
    checkpoints: Path | None = None
    is_resumed: bool = False


def draft_loss(
    hidden: Tensor, weights: tuple[Tensor, Tensor], labels: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each row against its label, and the row's best draft token.

    `weights` are the final norm and the LM head; `labels` are the target's logits, their
    log-sum-exp and best tokens of all rows, the row that is each row's label, and the share of
    the label that is its best token alone.
    """
    logits, log_sum, best, index, hard_share = labels
    drafted = linear(rms_norm(hidden, weights[0], eps), weights[1]).float()
    wanted = torch.exp(logits[index].float() - log_sum[index].unsqueeze(-1))
    soft = (wanted * drafted).sum(-1)
    hard = drafted.gather(-1, best[index].unsqueeze(-1)).squeeze(-1)
    loss = torch.logsumexp(drafted, dim=-1) - hard_share * hard - (1 - hard_share) * soft
    return loss, drafted.detach().argmax(-1)


DraftLoss = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class HeadJob:
    """The loop's view of head training; batches alternate between two streams."""

    model: HeadModel
    runner: HeadRunner
    source: FeatureSource
    batches: tuple[Batches, ...]
    unroll: UnrollPlan
    draft_loss: DraftLoss
    draft_ids: Tensor | None = None  # [draft vocab] i64, target id of each draft id; None: same
    matches: list[Tensor] = field(default_factory=list)  # [steps] share of right first guesses

    def next_loss(self, fraction: float) -> tuple[Tensor, int]:
        """Loss of a fresh batch."""
        turn = len(self.matches) % len(self.batches)
        tokens, _ = self.batches[turn].draw(fraction)
        loss, matches = self.loss(tokens)
        self.matches.append(matches)
        return loss, tokens.numel()

    def loss(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of [batch, length] tokens, and the share of rows alive after each step."""
        return _unrolled_loss(self, tokens, self.source.features(tokens, self.model.shape.taps))


def _unrolled_loss(job: HeadJob, tokens: Tensor, features: Features) -> tuple[Tensor, Tensor]:
    """Weighted mean loss over all steps, and the share of rows alive after each step."""
    batch, length = tokens.shape
    plan, logits = job.unroll, features.logits
    log_sum, best = torch.logsumexp(logits.float(), dim=-1), logits.argmax(-1)
    weights = (job.model.norm, job.model.lm_head)
    hard_share = torch.tensor(plan.hard_share, device=tokens.device)
    row = torch.arange(length, device=tokens.device).repeat(batch)
    index = torch.arange(batch * length, device=tokens.device)
    alive = torch.ones(batch * length, device=tokens.device)
    total = torch.zeros((), device=tokens.device)
    weight_sum, survivors = 0.0, []
    for step, hidden in enumerate(job.runner.unroll(features.taps, tokens, plan.n_steps)):
        # Row i is judged at position i + 1 + step; rows without one there count nothing.
        is_inside = row < length - 1 - step
        label = torch.where(is_inside, index + 1 + step, 0)
        teacher = (logits, log_sum, best, label, hard_share)
        losses, guess = job.draft_loss(hidden, weights, teacher, job.model.shape.norm_eps)
        weight = (alive + plan.stray * (1 - alive)) * is_inside
        total = total + plan.decay**step * (losses * weight).sum()
        weight_sum += plan.decay**step * batch * (length - 1 - step)
        # The next step reads the token after that position: was it guessed?
        following = functional.pad(tokens[:, 2 + step :], (0, 2 + step)).flatten()
        guessed = guess if job.draft_ids is None else job.draft_ids[guess]
        alive = alive * (guessed == following)
        survivors.append((alive * is_inside).sum() / (batch * (length - 1 - step)))
    return total / weight_sum, torch.stack(survivors).detach()


def train_head(
    source: FeatureSource,
    streams: tuple[Batches, ...],
    model: HeadModel,
    plan: HeadPlan,
    progress: Progress,
    draft_ids: Tensor | None = None,
) -> LoopState:
    """Train the head in place; compilation happens before the budget begins to count."""
    progress.say(f"head: {count_parameters(model.parameters()) / 1e6:.2f} M parameters")
    dtype = activation_dtype(plan.device)
    runner = HeadRunner(model, source.embedding, dtype, PLAIN_HEAD)
    job = HeadJob(model, runner, source, streams, plan.unroll, draft_loss, draft_ids)
    with progress.phase("choose pieces of the head"):
        job = _accelerated_job(job, progress)
    optimizers = Optimizers(model, plan.optimizer)
    loop = LoopPlan("head", Budget(plan.seconds, plan.steps), plan.checkpoints, plan.is_resumed)
    state = train(job, optimizers, loop, progress)
    if job.matches:
        recent = torch.stack(job.matches[-50:]).mean(0).tolist()
        progress.say(f"head: share of drafts alive after each step {[round(v, 3) for v in recent]}")
    return state


def _accelerated_job(job: HeadJob, progress: Progress) -> HeadJob:
    """Compile the row functions on a GPU if that works and pays."""
    if not job.source.embedding.is_cuda:
        return job
    runner = job.runner
    compiled = replace(
        job,
        runner=HeadRunner(
            job.model,
            runner.embedding,
            runner.dtype,
            HeadPieces(
                compile_function(project_pair),
                compile_function(finish),
                compile_function(band_attention),
            ),
        ),
        draft_loss=compile_function(draft_loss),
    )
    stream = job.batches[0]
    examples = [stream.draw_length(n)[0] for n in sorted(stream.sources)]

    def losses(candidate: HeadJob) -> list[Loss]:
        return [partial(_first, candidate.loss, example) for example in examples]

    return fastest_pieces((job, compiled), losses, job.model, progress)


def _first(loss: Callable[[Tensor], tuple[Tensor, Tensor]], tokens: Tensor) -> Tensor:
    return loss(tokens)[0]
