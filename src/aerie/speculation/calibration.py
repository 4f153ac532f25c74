"""Calibration: from the draft's path score to the probability that the path is accepted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.kernels.cards.axes import KNOTS

DEEPEST = 8  # levels beyond share one correction
# A knot of all depths together starts as if it had been seen so often and found right; a knot of
# one depth as if it had been seen so often and found like all depths.
PRIOR, DEPTH_PRIOR = 8.0, 24.0
FORGET = 0.998  # a round; the text changes its nature over hundreds of rounds


def _corrections() -> NDArray[np.float64]:
    return np.zeros((DEEPEST, KNOTS))


def _rising(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest rows that never fall, by weighted squares: isotonic regression.

    Entry i is the largest, over starts j <= i, of the smallest mean of values j..k, k >= i.
    """
    sums, totals = (
        np.pad(part, ((0, 0), (1, 0))).cumsum(axis=1) for part in (values * weights, weights)
    )
    # means[row, j, k]: mean of values j..k, only where j <= k
    spans = totals[:, None, 1:] - totals[:, :-1, None]
    means = (sums[:, None, 1:] - sums[:, :-1, None]) / np.where(spans > 0, spans, np.inf)
    is_span = np.triu(np.ones(means.shape[1:], dtype=bool))
    least = np.minimum.accumulate(np.where(is_span, means, np.inf)[:, :, ::-1], axis=2)[:, :, ::-1]
    rising: NDArray[np.float64] = np.where(is_span, least, -np.inf).max(axis=1)
    return rising


@dataclass(eq=False)
class Calibration:
    """A correction per depth, added to the score: zero at the start, learnt from verdicts.

    What one depth has not seen it takes from all depths together.
    """

    weight: NDArray[np.float64] = field(default_factory=_corrections)
    surplus: NDArray[np.float64] = field(default_factory=_corrections)

    def table(self) -> NDArray[np.float64]:
        """[depth - 1, knot]: what to add at each knot, so that the sum never falls with score."""
        scores = np.linspace(0, 1, KNOTS) ** 2
        shared = self.surplus.sum(axis=0) / (PRIOR + self.weight.sum(axis=0))
        evidence = DEPTH_PRIOR + self.weight
        correction = (self.surplus + DEPTH_PRIOR * shared) / evidence
        corrected = np.clip(scores + correction, 0, 1)
        # Exactly zero while nothing was seen: means of spans would round.
        return (
            _rising(corrected, evidence) - scores if self.weight.any() else np.zeros_like(evidence)
        )

    def learn(self, scores: Tensor, depths: Tensor, chosen: Tensor, accepted: Tensor) -> None:
        """Every verified node is one observation: accepted with its whole path, or not.

        All [B, M]: path scores, depths, which entries are nodes, which were accepted.
        """
        seen = chosen & (depths > 0)
        if not bool(seen.any()):
            return
        score = scores[seen].numpy().astype(np.float64)
        depth = np.minimum(depths[seen].numpy(), DEEPEST) - 1
        surplus = accepted[seen].numpy() - score
        place = np.sqrt(np.clip(score, 0, 1)) * (KNOTS - 1)
        low = np.minimum(place.astype(np.int64), KNOTS - 2)
        share = place - low
        self.weight *= FORGET
        self.surplus *= FORGET
        for knot, part in ((low, 1 - share), (low + 1, share)):
            np.add.at(self.weight, (depth, knot), part)
            np.add.at(self.surplus, (depth, knot), part * surplus)


def corrected(scores: Tensor, depths: Tensor, table: NDArray[np.float64]) -> Tensor:
    """Acceptance probability of every path by itself, [B, M] f32; a root's is its score."""
    place = np.sqrt(np.clip(scores.numpy(), 0, 1)) * (KNOTS - 1)
    low = np.minimum(place.astype(np.int64), KNOTS - 2)
    row = np.clip(depths.numpy(), 1, DEEPEST) - 1
    share = place - low
    correction = (1 - share) * table[row, low] + share * table[row, low + 1]
    weights = np.where(scores.numpy() > 0, np.clip(scores.numpy() + correction, 0, 1), 0.0)
    return torch.from_numpy(np.where(depths.numpy() == 0, scores.numpy(), weights)).float()
