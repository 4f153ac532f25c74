"""The best forest under a measured cost: global top-n over all requests of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Forest:
    """Which nodes are verified, on the device of the scores."""

    chosen: Tensor  # [B, N] bool, closed under ancestors
    size_index: Tensor  # [] i64, which of the offered sizes it is
    expected: Tensor  # [] f64, tokens the round is expected to emit


def choose_forest(weights: Tensor, sizes: Tensor, seconds: Tensor, rate: Tensor) -> Forest:
    """The forest of n rows that is worth most: expected tokens - rate * seconds(n).

    `weights` [B, N] f32 is the probability that the whole path to a node is accepted; it never
    rises from a parent to its child, a parent's id is smaller, and node 0 is the root. Then for
    every n the best forest is the n largest weights of the whole batch, by (weight, request,
    node id), and it is closed under ancestors. `sizes` [S] i64 ascending, each at least B, are
    the row counts on offer, `seconds` [S] f64 what verifying them costs, `rate` [] f64 the
    tokens per second that time is worth. Nothing is read back: it may be captured in a graph.

    Cost need not be monotone: every size is weighed. A size beyond the nodes that have a weight
    is weighed with those there are, at its own cost.
    """
    batch, n_nodes = weights.shape
    order_keys = weights.clone()
    order_keys[:, 0] = torch.inf  # roots first: they are verified whatever happens
    order = torch.sort(order_keys.flatten(), descending=True, stable=True).indices
    mass = weights.flatten()[order].double().cumsum(0)
    n_usable = (weights > 0).sum()
    n_rows = torch.minimum(sizes, n_usable)
    tokens = mass[(n_rows - 1).clamp(min=0)]
    # One entry, not none: an index without dimensions would be read by the host.
    best = (tokens - rate * seconds).argmax(dim=0, keepdim=True)
    ranks = torch.arange(batch * n_nodes, device=weights.device)
    chosen = torch.zeros(batch * n_nodes, dtype=torch.bool, device=weights.device)
    chosen = chosen.scatter(0, order, ranks < n_rows[best])
    return Forest(chosen.view(batch, n_nodes), best[0], tokens[best][0])
