"""Muon's orthogonal step, and a run that continues from saved state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aerie.train.optimizers import Optimizers, OptimizerSettings, orthogonalise


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 32, 8), (1, 8, 32)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_a_zero_gradient_stays_zero() -> None:
    assert torch.equal(orthogonalise(torch.zeros(1, 4, 4)), torch.zeros(1, 4, 4))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first = nn.Parameter(torch.randn(6, 4, generator=generator))
        self.lm_head = nn.Parameter(torch.randn(5, 6, generator=generator))

    def loss(self, seed: int) -> Tensor:
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
        return (torch.tanh(x @ self.first.T) @ self.lm_head.T).square().mean()


def run(model: Model, optimizers: Optimizers, seeds: range) -> None:
    for seed in seeds:
        model.loss(seed).backward()
        optimizers.step(1.0)


def test_restored_state_continues_the_same_run() -> None:
    whole, parted = Model(), Model()
    settings = OptimizerSettings()
    run(whole, Optimizers(whole, settings), range(6))
    first = Optimizers(parted, settings)
    run(parted, first, range(3))
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    second = Optimizers(parted, settings)
    second.restore(state)
    run(parted, second, range(3, 6))
    for a, b in zip(whole.parameters(), parted.parameters(), strict=True):
        assert torch.equal(a, b)
