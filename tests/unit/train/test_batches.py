"""Batches: same number of tokens at every length, each window once an epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aerie.errors import UsageError
from aerie.train.batches import Batches, Stage, WindowSource


def stream(n: int) -> np.ndarray:
    return (np.arange(n) % 4000 + 1).astype(np.uint16)


def test_targets_follow_inputs_and_a_sequence_begins_with_the_mark() -> None:
    batches = Batches(stream(5000), 256, (Stage(0.0, {64: 1.0}),), 1, "cpu")
    inputs, targets = batches.draw(0.0)
    assert inputs.shape == targets.shape == (4, 64)
    assert torch.equal(inputs[:, 0], torch.zeros(4, dtype=torch.long))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_stages_choose_lengths_and_rows_stay_the_same() -> None:
    stages = (Stage(0.0, {64: 1.0}), Stage(0.5, {128: 0.5, 256: 0.5}))
    batches = Batches(stream(5000), 256, stages, 1, "cpu")
    early = {batches.draw(0.2)[0].shape[1] for _ in range(10)}
    late = {batches.draw(0.9)[0].shape for _ in range(30)}
    assert early == {64}
    assert late == {(2, 128), (1, 256)}


def test_an_epoch_visits_every_window_once() -> None:
    source = WindowSource(1000, 100, 5)
    starts = source.draw(9)
    assert sorted({b - a for a, b in zip(sorted(starts), sorted(starts)[1:], strict=False)}) == [
        100
    ]


def test_large_vocabularies_and_own_first_token() -> None:
    tokens = np.full(300, 100_000, dtype=np.uint32)
    batches = Batches(tokens, 64, (Stage(0.0, {64: 1.0}),), 1, "cpu", first_token=None)
    assert batches.draw(0.0)[0].unique().tolist() == [100_000]


def test_refuses_what_cannot_work() -> None:
    with pytest.raises(UsageError, match="too short"):
        WindowSource(100, 64, 1)
    with pytest.raises(UsageError, match="multiple"):
        Batches(stream(5000), 100, (Stage(0.0, {64: 1.0}),), 1, "cpu")
