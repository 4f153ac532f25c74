"""The bed of `aerie bench engine`: policies by one table of costs, and what planners think."""

from __future__ import annotations

from dataclasses import replace

from aerie.assemble.core import find_costs
from aerie.assemble.sizes import tree_shape
from aerie.bench.bed import Bed, Run
from aerie.bench.contract import CAST, PLANNER, Contract, PolicyTerms
from aerie.bench.rivals import Cast
from aerie.bench.round.setup import RoundSetup
from aerie.config import PlannerConfig, SpeculationConfig
from aerie.models.inflate.embed import LargePair
from aerie.requests.events import TokenEvent
from aerie.speculation.offer import Offers
from aerie.speculation.planner import Planner, Round
from aerie.speculation.policy import Growth, Policy, Situation
from aerie.tune.grid import silent


class WatchedPlanner(Planner):
    """The planner, and what it opened last: None for a round without a draft."""

    last: Growth | None = None

    def open(self, situation: Situation) -> Growth | None:
        """As it is, and remembered."""
        self.last = super().open(situation)
        return self.last


class WatchedBed(Bed):
    """Sums what the planner thought that timed rounds would take."""

    def __init__(
        self, contract: Contract, setup: RoundSetup, pair: LargePair, planner: PlannerConfig
    ) -> None:
        super().__init__(contract, setup, pair)
        speculation = SpeculationConfig(policy=PLANNER)
        config = replace(self.config, speculation=speculation, planner=planner)
        self.costs = find_costs(config, pair.target, pair.head, self.limits, silent)
        self.explore_every = planner.explore_every

    def policy(self, terms: PolicyTerms, speculation: SpeculationConfig) -> Policy:
        """By the costs of this session."""
        shape = tree_shape(speculation)
        if terms.method == CAST:
            return Cast(shape, self.costs)
        if terms.method == PLANNER:
            offers = Offers(None, shape.verify, "cpu")
            return WatchedPlanner(shape, self.costs, self.explore_every, offers, True)
        return super().policy(terms, speculation)

    def _count(self, run: Run, events: list[TokenEvent], last: dict[int, float]) -> None:
        super()._count(run, events, last)
        policy = self.core.launcher.parts.policy
        if isinstance(policy, WatchedPlanner):
            opened, lengths = policy.last, [r.seq_len for r in self.core.running]
            situation = Situation(len(lengths), sum(lengths) / max(len(lengths), 1))
            plain = policy.prices(situation).plain
            run.modelled_seconds += opened.seconds if isinstance(opened, Round) else plain
