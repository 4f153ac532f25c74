"""The planner: trees paid for by measured cost, per request, with "nothing" as an answer.

The rule is one: time is worth `rate` tokens per second, the running speed of the engine itself.
A layer is drafted, and a node verified, when the tokens it is expected to add are worth more than
the seconds it costs. At the optimum of a ratio the marginal gain per second equals the ratio, so
there is no threshold to set (docs/planner.md).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.speculation.calibration import Calibration, accepted_nodes, admissible
from aerie.speculation.costs import CostTable, Prices
from aerie.speculation.forest import choose_forest
from aerie.speculation.policy import Gains, Growth, Situation, TreeShape
from aerie.speculation.running import Floats, Forecast, Running, Spell
from aerie.speculation.tree import DraftTree, Verdict, best_nodes

LOG = logging.getLogger(__name__)
# An exploring round takes time for half its worth, so it goes deeper and wider by the same rule.
EXPLORING = 0.5
CONTEXT_STEP = 256  # costs are looked up once for contexts this close


@dataclass(frozen=True, eq=False)
class Level:
    """One more level of a draft, by the number k of nodes it is grown from, 0 included."""

    tokens: Floats  # [..., K+1] to expect, all requests together
    verify: Floats  # [..., K+1] seconds that verifying k more nodes of every request adds


@dataclass(eq=False)
class Round:
    """What one round decided, until its verdict is in."""

    situation: Situation
    prices: Prices
    rate: float
    is_exploring: bool
    seconds: float  # what it costs so far, by the table
    widths: list[int] = field(default_factory=list)  # nodes fed at each level
    gains: list[float] = field(default_factory=list)  # G of those nodes


class Planner:
    """The cost-aware policy. Its state is what it has learnt; no token ever depends on it."""

    def __init__(self, shape: TreeShape, costs: CostTable, explore_every: int) -> None:
        self.shape = shape
        self.costs = costs
        self.calibration = Calibration()
        self.running = Running.at_start(shape.depth)
        self.spell = Spell()
        self.last: Round | None = None  # None: the round does not draft
        self._explore_every = explore_every
        self._n_rounds = 0
        self._prices: dict[tuple[int, int], Prices] = {}
        self._forecast: tuple[Situation, Forecast] | None = None
        self._is_said = False

    def open(self, situation: Situation) -> Growth | None:
        """Draft unless plain decoding is expected to be faster; look again now and then."""
        self.last = None
        if not situation.batch:
            return None
        prices = self.prices(situation)
        forecast = self.running.forecast(situation.batch, prices, self.shape)
        self._forecast = (situation, forecast)
        if not self.spell.allows(forecast.pays):
            self._say_once()
            return None
        self._n_rounds += 1
        is_exploring = bool(self._explore_every) and self._n_rounds % self._explore_every == 0
        rate = self.running.rate(situation.batch, situation.batch * forecast.rate)
        rate = max(rate, situation.batch / prices.plain)
        rate *= EXPLORING if is_exploring else 1.0
        self.last = Round(situation, prices, rate, is_exploring, prices.extend)
        return self

    @property
    def reason(self) -> str:
        """Why the last round drafted, or did not: costs, gain and break-even in one sentence."""
        if self._forecast is None:
            return "no round was planned yet"
        situation, forecast = self._forecast
        verb = "drafts" if forecast.pays else "drafts nothing"
        where = f"batch {situation.batch}, context {situation.context:.0f}"
        return f"the planner {verb} at {where}: {forecast}"

    def _say_once(self) -> None:
        """In the log, the first time that plain decoding is expected to be faster."""
        if not self._is_said:
            self._is_said = True
            LOG.info("%s", self.reason)

    def prices(self, situation: Situation) -> Prices:
        """The costs of a situation, looked up once."""
        key = (situation.batch, round(situation.context / CONTEXT_STEP))
        if key not in self._prices:
            n_rows = situation.batch * self.shape.verify
            context = key[1] * CONTEXT_STEP
            self._prices[key] = self.costs.prices(key[0], context, n_rows, self.shape.top_k)
        return self._prices[key]

    def next_width(self, depth: int, gains: Gains) -> int:
        """The number of nodes whose children are worth most beyond their cost."""
        now = self.last
        assert now is not None, "asked for a width in a round that does not draft"
        if depth >= self.shape.depth:
            return 0
        gained = gains().astype(np.float64)
        level = self.level(depth, gained)
        values = level.tokens - now.rate * (now.prices.draft + level.verify)
        width = int(values.argmax())  # value 0 at width 0: the tree ends here
        if width:
            now.widths.append(width)
            now.gains.append(float(gained[width]))
            now.seconds += float(now.prices.draft[width])
        return width

    def level(self, depth: int | NDArray[np.int64], gained: Floats) -> Level:
        """What children of the best k nodes of a level bring and cost; `gained` is K3's G.

        Several levels at once: depths as a column, gains in rows.
        """
        now = self.last
        assert now is not None, "asked for a level in a round that does not draft"
        batch = now.situation.batch
        rows = batch * (1 + depth + np.arange(gained.shape[-1]))
        verify = now.prices.verify[np.minimum(rows, len(now.prices.verify) - 1)]
        tokens = batch * self.running.ratios[depth - 1] * gained
        return Level(tokens, verify - verify[..., :1])

    def select(self, tree: DraftTree) -> Tensor:
        """The forest that is worth most at this round's rate."""
        now = self.last
        if now is None:
            return best_nodes(tree, 1)
        batch = now.situation.batch
        table = torch.from_numpy(self.calibration.table()).float()
        weights = admissible(tree, table, int(tree.depths.max()), self.shape.verify)
        most = min(batch * self.shape.verify, int((weights > 0).sum()))
        sizes = np.arange(batch, max(most, batch) + 1)
        seconds = now.prices.verify[sizes]
        forest = choose_forest(
            weights,
            torch.from_numpy(sizes),
            torch.from_numpy(seconds),
            torch.tensor(now.rate, dtype=torch.float64),
        )
        now.seconds += float(seconds[int(forest.size_index)])
        return forest.chosen

    def learn(self, tree: DraftTree, chosen: Tensor, verdict: Verdict) -> None:
        """Calibrate on the verdict and bring the running averages up to date."""
        now = self.last
        if now is None:
            return
        accepted = accepted_nodes(chosen, verdict)
        self.calibration.learn(tree, chosen, accepted)
        n_levels = len(now.widths) + 1
        batch, bins = now.situation.batch, self.shape.depth + 1
        taken, sent = (
            np.bincount(tree.depths[nodes].numpy(), minlength=bins)[1 : n_levels + 1] / batch
            for nodes in (accepted, chosen)
        )
        self.running.follow(taken, sent, now.gains)
        if not now.is_exploring:
            self.running.pace(batch, float(accepted.sum()), now.seconds, now.rate)
