"""A planner whose decisions are taken from it, so that rounds of any shape can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aerie.speculation.planner import Planner
from aerie.speculation.policy import Growth, Lesson, Settled, Situation, Widths


@dataclass(frozen=True)
class ForcedPlan:
    """What every request drafts, and how many rows all of them verify."""

    widths: Widths
    rows: int


class Forced(Planner):
    """The planner's own rounds with its decisions taken from it: same work, fixed plan."""

    plan = ForcedPlan((), 1)

    def open(self, situation: Situation) -> Growth | None:
        """As told; one row a request needs no draft."""
        return Settled(self.plan.widths) if self.plan.rows > situation.batch else None

    def settle(self, growth: Growth, known: Sequence[Widths]) -> Growth:
        """What is to be measured must run, not what would do."""
        return growth

    def prepare(self, growth: Growth | None, n_seats: int, is_steady: bool) -> int | None:
        """Every size but the wanted one costs more than anything is worth; nothing is agreed."""
        offer = self.offers.of(n_seats)
        prices = np.where(offer.sizes == self.plan.rows, 0.0, np.inf)
        assert growth is None or not prices.all(), f"{self.plan.rows} rows are not on offer"
        offer.write(1.0, prices, np.zeros_like(self.learnt.calibration.table()))
        return None

    def learn(self, lesson: Lesson, growth: Growth | None) -> None:
        """Nothing."""
