"""The best forest under a measured cost: global top-n over all requests of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aerie.kernels.pytorch import round_choice


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
    chosen, best = round_choice.choose_forest(weights, sizes, seconds, rate)
    return Forest(chosen, best[0], (weights * chosen).double().sum())
