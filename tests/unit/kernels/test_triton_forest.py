"""A planner's choice in Triton launches is its PyTorch definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels.triton_gpu import round_forest
from aerie.speculation import calibration, round_ops
from aerie.speculation.calibration import DEEPEST, KNOTS
from aerie.speculation.round_ops import Offer
from aerie.speculation.tree import DraftTree
from tests.unit.kernels.triton_device import DEVICE

CAPACITY = 64  # columns of the buffers a tree is a view of


def random_tree(rng: torch.Generator, batch: int, top_k: int, widths: tuple[int, ...]) -> DraftTree:
    """Path scores that fall from parent to child; some requests end early, one has no draft."""
    n_nodes = 1 + top_k * (1 + sum(widths))
    scores = torch.zeros((batch, CAPACITY))
    parents = torch.full((batch, CAPACITY), -1)
    depths = torch.zeros((batch, CAPACITY), dtype=torch.int64)
    scores[:, 0] = 1.0
    for request in range(batch):
        above, start = [0], 1
        for depth, width in enumerate((1, *widths), start=1):
            fed = above[:width]
            for number, parent in enumerate(fed):
                own = range(start + number * top_k, start + (number + 1) * top_k)
                # Eighths: equal scores are common, and their order is part of the definition.
                share = torch.randint(0, 9, (top_k,), generator=rng) / 8
                for node, part in zip(own, share.tolist(), strict=True):
                    scores[request, node] = scores[request, parent] * part
                    parents[request, node], depths[request, node] = parent, depth
            above = list(range(start, start + len(fed) * top_k))
            start += width * top_k
    scores[-1, 1:] = 0.0
    views = (part.to(DEVICE)[:, :n_nodes] for part in (scores, depths, parents))
    scores, depths, parents = views
    count = torch.full((batch,), n_nodes, device=DEVICE)
    return DraftTree(depths, scores, depths, parents, count)


def random_offer(rng: torch.Generator, batch: int, verify: int) -> Offer:
    sizes = torch.tensor([batch, batch + 3, 2 * batch + 4, 4 * batch + 8, 64])
    seconds = 0.01 + 0.001 * torch.rand(len(sizes), generator=rng, dtype=torch.float64).cumsum(0)
    seconds[-1] = torch.inf
    table = torch.sort(torch.rand((DEEPEST, KNOTS), generator=rng, dtype=torch.float64), 1).values
    rate = torch.tensor([40.0], dtype=torch.float64)
    numbers = torch.cat((rate, seconds, 0.2 * table.flatten() - 0.1))
    return Offer(sizes.to(DEVICE), numbers.to(DEVICE), verify)


def outputs(batch: int) -> tuple[Tensor, Tensor]:
    chosen = torch.ones((batch, CAPACITY), dtype=torch.bool, device=DEVICE)
    return chosen, torch.full((batch, 3), 7, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("widths", [(), (1, 1, 1, 1), (2, 2), (3,) * 4])
def test_same_forest(widths: tuple[int, ...], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    batch, top_k = 1 + seed * 2, 3
    tree = random_tree(rng, batch, top_k, widths)
    offer = random_offer(rng, batch, verify=6 + 20 * (seed == 1))
    n_nodes, found = tree.n_nodes, []
    for ops in (round_ops, round_forest):
        chosen, count = outputs(batch)
        ops.choose_planned(tree, widths, offer, chosen[:, :n_nodes], count[:, 1])
        sent = torch.full((batch, 2 * 26), 9.0, device=DEVICE)
        ops.note_chosen(tree, chosen[:, :n_nodes], sent)
        found.append((chosen, count, sent))
    for expected, made in zip(*found, strict=True):
        assert torch.equal(made, expected)
    chosen = found[0][0][:, :n_nodes]
    assert chosen[:, 0].all() and batch <= chosen.sum() <= 4 * batch + 8


def test_the_calibration_has_as_many_knots() -> None:
    assert round_forest.KNOTS == calibration.KNOTS
