"""CAST's rule as a policy to compare with: cost tables and hand-set thresholds.

Our reading of arXiv 2510.26577: one width and one verify size for the whole batch. Cost is counted
in plain decoding steps; a level, a width or a row goes in while it brings at least so many tokens
per step. The thresholds are its published order of magnitude, not tuned here. It decides on the
host, layer by layer, so its rounds are called one by one and never captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aerie.costs.table import CostTable, Prices
from aerie.kernels.registry import Kernels
from aerie.speculation.policy import Gain, Growth, Lesson, Situation, TreeShape, Widths
from aerie.speculation.preview import Preview
from aerie.speculation.tree import DraftTree


@dataclass(frozen=True)
class Thresholds:
    """Tokens per plain step that a part of the tree must bring."""

    depth: float = 4.0
    width: float = 3.0
    verify: float = 2.5


class Cast:
    """Thresholds on gain over cost; it always drafts at least one layer."""

    learns = False
    reason = "policy cast drafts at least one layer in every round"
    widths: Widths | None = None  # asked after every layer
    shapes: tuple[Widths | None, ...] = ()
    preview: Preview | None = None
    previews: tuple[Preview, ...] = ()

    def __init__(
        self, shape: TreeShape, costs: CostTable, thresholds: Thresholds | None = None
    ) -> None:
        self.shape = shape
        self._costs = costs
        self._thresholds = thresholds or Thresholds()
        self._batch = 0
        self._prices: Prices | None = None

    def most_rows(self, n_seats: int) -> int:
        """Every tree as large as it may be."""
        return n_seats * self.shape.verify

    def open(self, situation: Situation) -> Growth | None:
        """Look the costs up."""
        self._batch = situation.batch
        if not situation.batch:
            return None
        n_rows = situation.batch * self.shape.verify
        self._prices = self._costs.prices(
            situation.batch, situation.context, n_rows, self.shape.top_k
        )
        return self

    def next_width(self, depth: int, gain: Gain) -> int:
        """The widest frontier whose last node pays, if the level as a whole pays."""
        assert self._prices is not None, "asked for a width before the round was opened"
        if depth >= self.shape.depth:
            return 0
        gained = self._batch * np.asarray(torch.as_tensor(gain()).cpu(), dtype=np.float64)
        steps = self._prices.draft / self._prices.plain
        values = gained - self._thresholds.width * steps
        values[0] = -np.inf
        width = int(values.argmax())
        return width if gained[width] >= self._thresholds.depth * steps[width] else 0

    def settle(self, growth: Growth, known: Sequence[Widths]) -> Growth:
        """Nothing is recorded."""
        return growth

    def prepare(self, growth: Growth | None, n_seats: int, is_steady: bool) -> int | None:
        """The choice needs nothing."""
        return None

    def select(
        self, kernels: Kernels, tree: DraftTree, selected_out: Tensor, count_out: Tensor
    ) -> None:
        """The same number of nodes for every request: the last that pays on average."""
        assert self._prices is not None, "asked to select before the round was opened"
        ordered = torch.sort(tree.scores, dim=1, descending=True).values.double().sum(0)
        most = min(self.shape.verify, tree.n_nodes)
        mass = ordered[:most].cumsum(0).cpu().numpy()
        rows = self._batch * np.arange(1, most + 1)
        steps = self._prices.verify[rows] / self._prices.plain
        kernels["choose_best_nodes"](
            cumu_scores=tree.scores,
            verify_num=1 + int((mass - self._thresholds.verify * steps).argmax()),
            selected=selected_out,
            n_chosen=count_out,
        )

    def learn(self, lesson: Lesson, growth: Growth | None) -> None:
        """The thresholds are fixed."""
