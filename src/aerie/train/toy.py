"""Toy sizes: the whole recipe in half a minute on one CPU core, for tests and for a first look."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.train.batches import Stage
from aerie.train.corpus import CorpusSettings
from aerie.train.head_model import head_shape
from aerie.train.optimizers import OptimizerSettings
from aerie.train.pair_head import HeadStage
from aerie.train.self_text import SelfTextPlan
from aerie.train.target_model import TargetRunner, TargetShape
from aerie.train.train_head import HeadPlan
from aerie.train.train_target import TargetPlan

VOCAB = 512
SHAPE = TargetShape(
    vocab_size=VOCAB,
    hidden=64,
    n_layers=4,
    n_heads=2,
    head_dim=32,
    mlp_width=128,
    max_positions=1024,
)


def toy_corpus() -> CorpusSettings:
    """A few hundred files; one worker process, so that a shared machine is not crowded."""
    return CorpusSettings(
        vocab_size=VOCAB,
        sample_bytes=400_000,
        heldout_share=0.05,
        most_dropped=0.02,
        n_workers=1,
        max_files=160,
    )


@dataclass(frozen=True)
class ToySteps:
    """Steps rather than seconds: the toy gives the same weights on a slow machine."""

    target: int = 120
    head: int = 40


def toy_target(n_steps: int, seed: int) -> TargetPlan:
    """Short sequences and small steps; the last third at twice the length."""
    return TargetPlan(
        seconds=0.0,
        steps=n_steps,
        shape=SHAPE,
        n_rows=2048,
        stages=(Stage(0.0, {128: 1.0}), Stage(0.7, {128: 0.5, 256: 0.5})),
        optimizer=OptimizerSettings(matrix_rate=0.03, other_rate=1e-2),
        seed=seed,
        device="cpu",
    )


def toy_head(target: TargetRunner, n_steps: int, seed: int) -> HeadStage:
    """A narrow head with a window of 64, a handful of self-written batches, two tiny buckets."""
    shape = head_shape(target.model.shape, taps=(1, 2, 4), mlp_width=128, window=64)
    plan = HeadPlan(
        seconds=0.0,
        steps=n_steps,
        shape=shape,
        n_rows=1024,
        stages=(Stage(0.0, {128: 0.5, 256: 0.5}),),
        optimizer=OptimizerSettings(matrix_rate=0.03, other_rate=4e-3),
        seed=seed,
        device="cpu",
    )
    self_text = SelfTextPlan(seconds=0.0, n_prompt=64, n_new=64, batch=64)
    return HeadStage(plan, self_text, counts={512: 4})
