"""Toy sizes: the whole recipe in half a minute on one CPU core, for tests and for a first look."""

from __future__ import annotations

from pathlib import Path

from aerie.train.batches import Stage
from aerie.train.corpus import CorpusSettings
from aerie.train.optimizers import OptimizerSettings
from aerie.train.target_model import TargetShape
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
        heldout_share=0.1,
        most_dropped=0.02,
        n_workers=1,
        max_files=160,
    )


def toy_target(seconds: float, seed: int, checkpoints: Path | None = None) -> TargetPlan:
    """Short sequences and small steps; the last third at twice the length."""
    return TargetPlan(
        seconds=seconds,
        shape=SHAPE,
        n_rows=2048,
        stages=(Stage(0.0, {128: 1.0}), Stage(0.7, {128: 0.5, 256: 0.5})),
        optimizer=OptimizerSettings(matrix_rate=0.03, other_rate=1e-2),
        seed=seed,
        device="cpu",
        checkpoints=checkpoints,
    )
