"""The chosen forest is the best one: brute force over all ancestor-closed sets says so."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from aerie.speculation.forest import choose_forest

Parents = list[list[int]]


def random_batch(rng: random.Random, batch: int, n_nodes: int) -> tuple[torch.Tensor, Parents]:
    weights, parents = torch.zeros((batch, n_nodes)), []
    for b in range(batch):
        weights[b, 0], links = 1.0, [-1]
        for node in range(1, n_nodes):
            parent = rng.randrange(node)
            links.append(parent)
            # Ties on purpose, also children as likely as their parents.
            weights[b, node] = weights[b, parent] * rng.choice([1.0, 0.5, 1 / 3])
        parents.append(links)
    return weights, parents


def closed_sets(parents: list[int]) -> list[frozenset[int]]:
    nodes = range(1, len(parents))
    found = []
    for size in range(len(parents)):
        for subset in itertools.combinations(nodes, size):
            kept = {0, *subset}
            if all(parents[node] in kept for node in subset):
                found.append(frozenset(kept))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_closed_forest_of_any_size_is_worth_more(seed: int) -> None:
    rng = random.Random(seed)
    batch, n_nodes = rng.choice([(1, 7), (2, 5), (3, 4)])
    weights, parents = random_batch(rng, batch, n_nodes)
    sizes = torch.arange(batch, batch * n_nodes + 1)
    # A staircase that even falls: no assumption of monotone cost survives it.
    seconds = torch.tensor([rng.choice([1.0, 1.2, 2.0]) for _ in sizes], dtype=torch.float64)
    rate = torch.tensor(rng.choice([0.1, 0.5, 2.0]), dtype=torch.float64)
    forest = choose_forest(weights, sizes, seconds, rate)
    for b in range(batch):
        kept = set(forest.chosen[b].nonzero()[:, 0].tolist())
        assert 0 in kept
        assert all(parents[b][node] in kept for node in kept if node)
    assert int(forest.chosen.sum()) == int(sizes[forest.size_index])
    best = max(
        sum(float(weights[b, node]) for b, kept in enumerate(combo) for node in kept)
        - float(rate) * float(seconds[sum(map(len, combo)) - batch])
        for combo in itertools.product(*(closed_sets(links) for links in parents))
    )
    mine = float(weights[forest.chosen].double().sum() - rate * seconds[forest.size_index])
    assert mine == pytest.approx(best, abs=1e-6)


def test_roots_are_verified_however_dear_and_tied() -> None:
    weights = torch.ones((3, 4))
    sizes = torch.tensor([3, 12])
    seconds = torch.tensor([1.0, 100.0], dtype=torch.float64)
    forest = choose_forest(weights, sizes, seconds, torch.tensor(1.0, dtype=torch.float64))
    assert forest.chosen.tolist() == [[True, False, False, False]] * 3
    assert float(forest.expected) == 3.0


def test_a_size_beyond_the_nodes_takes_what_there_is() -> None:
    weights = torch.tensor([[1.0, 0.5, 0.0, 0.0]])
    sizes, seconds = torch.tensor([4]), torch.tensor([1.0], dtype=torch.float64)
    forest = choose_forest(weights, sizes, seconds, torch.tensor(0.1, dtype=torch.float64))
    assert forest.chosen.tolist() == [[True, True, False, False]]


def test_easy_requests_get_more_nodes_than_hard_ones() -> None:
    chain = torch.arange(8)
    weights = torch.stack([0.95**chain, 0.6**chain, 0.1**chain])
    sizes = torch.arange(3, 25)
    seconds = 1.0 + 0.1 * sizes.double()
    forest = choose_forest(weights, sizes, seconds, torch.tensor(3.0, dtype=torch.float64))
    # A row costs 0.3 tokens: 0.6 squared is more, its cube and 0.1 are less.
    assert forest.chosen.sum(1).tolist() == [8, 3, 1]
