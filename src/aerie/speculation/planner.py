"""The planner: trees paid for by measured cost, per request, with "nothing" as an answer.

The rule is one: time is worth `rate` tokens per second, the running speed of the engine itself.
A layer is drafted, and a node verified, when the tokens it is expected to add are worth more than
the seconds it costs. At the optimum of a ratio the marginal gain per second equals the ratio, so
there is no threshold to set (docs/planner.md).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.costs.table import CostTable, Prices
from aerie.kernels.registry import Kernels
from aerie.speculation.calibration import corrected
from aerie.speculation.foresight import Foresight
from aerie.speculation.offer import Offers
from aerie.speculation.policy import Gain, Growth, Lesson, Situation, TreeShape, Widths
from aerie.speculation.preview import Preview
from aerie.speculation.running import Floats, Forecast, Running, go_on
from aerie.speculation.tree import DraftTree
from aerie.speculation.worth import Learnt

LOG = logging.getLogger(__name__)
# An exploring round takes time for half its worth, so it goes deeper and wider by the same rule.
EXPLORING = 0.5
CONTEXT_STEP = 256  # costs are looked up once for contexts this close
_MOST_PRICES = 256  # kept: 32 kB each at batch 64, of many contexts and every batch that is met
# Widths a captured draft may have, all levels alike: a graph for every depth and width, so few of
# them. A level of 8 nodes costs a tenth more than one of a single node for one request, and two
# thirds more for 32 (H200). Without 2, simulated at that table's prices, 8 x 8K was 6 % slower.
WIDTHS = (1, 2, 4, 8)
LEVELS = (1, 2, 3, 4, 6, 8)  # and the deepest: among many, one more changes little
# Share of the last draft's gains in what the next one is planned by: the text has changed since.
LAST = 0.5
# Seconds a request between two numbers of rows from which a round's own tree decides, not the last
# ones: the device then waits 0.2 ms for the host (H200). Rows of a dense target are cheaper; those
# of a mixture wake experts: modelled at 1 x 1K, 0.93 of the best chain agreed and 1.04 decided.
_DEAR = 1e-3
# What a level that was never drafted is taken to gain by its best k nodes.
FIRST_GAIN, FIRST_DECAY = 0.6, 0.5


@dataclass(frozen=True, eq=False)
class Level:
    """One more level of a draft, by the number k of nodes it is grown from, 0 included."""

    tokens: Floats  # [..., K+1] to expect, all requests together
    verify: Floats  # [..., K+1] seconds that verifying k more nodes of every request adds


@dataclass(eq=False)
class Round:
    """What one round was planned from and what it decided, until its verdict is in."""

    situation: Situation
    prices: Prices
    rate: float
    is_exploring: bool
    seconds: float  # what it costs so far, by the table
    decide: Any  # (round, depth, gain) -> width, where the host looks between layers
    settled: Widths | None = None  # decided beforehand
    preview: Preview | None = None
    fed: list[int] = field(default_factory=list)  # nodes fed at each level
    gains: list[float] = field(default_factory=list)  # G of those nodes

    @property
    def widths(self) -> Widths | None:
        """What was decided before the draft began, if it was."""
        return self.settled

    def next_width(self, depth: int, gain: Gain) -> int:
        """As settled, or the number of nodes whose children are worth most beyond their cost."""
        if self.settled is not None:
            return self.settled[depth - 1] if depth <= len(self.settled) else 0
        width: int = self.decide(self, depth, gain)
        return width


class Planner:
    """The cost-aware policy. `looks`: it is asked after every layer, not once before the draft."""

    learns = True

    def __init__(
        self, shape: TreeShape, costs: CostTable, explore_every: int, offers: Offers, looks: bool
    ) -> None:
        self.shape = shape
        self.costs = costs
        self.offers = offers
        self.learnt = Learnt(Running.at_start(shape.depth))
        self._looks = looks
        self._explore_every = explore_every
        self._n_rounds = 0
        self.foresight: Foresight | None = None  # None: every pass looks at the whole KV
        self._prices: dict[tuple[int, int], Prices] = {}
        self._forecast: tuple[Situation, Forecast] | None = None
        self._is_said = False
        guess = FIRST_GAIN * (1 - FIRST_DECAY ** np.arange(shape.top_k + 1))
        self._gains = np.tile(guess.astype(np.float32), (shape.depth, 1))

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        """Nothing, the root's children alone, and every width with every depth."""
        return (None, (), *((width,) * n for width in self._widths for n in self._levels))

    def most_rows(self, n_seats: int) -> int:
        """The largest size on offer."""
        return int(self.offers.of(n_seats).sizes[-1])

    def open(self, situation: Situation) -> Growth | None:
        """Draft unless plain decoding is expected to be faster; look again now and then."""
        if not situation.batch:
            return None
        prices = self.prices(situation)
        forecast = self.learnt.running.forecast(situation.batch, prices, self.shape)
        self._forecast = (situation, forecast)
        if not self.learnt.spell.allows(forecast.pays):
            self._say_once()
            return None
        self._n_rounds += 1
        is_exploring = bool(self._explore_every) and self._n_rounds % self._explore_every == 0
        rate = self.learnt.running.rate(situation.batch, situation.batch * forecast.rate)
        rate = max(rate, situation.batch / prices.plain) * (EXPLORING if is_exploring else 1.0)
        decide = partial(_decide, self)
        made = Round(situation, prices, rate, is_exploring, prices.extend, decide)
        if self.foresight is not None and situation.may_preview:
            asked = self.foresight.choose(situation, rate, forecast, self.prices)
            made.preview, ahead = asked
            made.seconds += ahead
        if self._looks:
            return made
        if made.preview is not None:
            return self._adopt(made, made.preview.widths)
        return self._planned(made)

    @property
    def previews(self) -> tuple[Preview, ...]:
        """All that the foresight may choose."""
        return () if self.foresight is None else self.foresight.plans

    @property
    def reason(self) -> str:
        """Why the last round drafted, or did not: costs, gain and break-even in one sentence."""
        if self._forecast is None:
            return "no round was planned yet"
        situation, forecast = self._forecast
        verb = "drafts" if forecast.pays else "drafts nothing"
        where = f"batch {situation.batch}, context {situation.context:.0f}"
        ahead = "" if self.foresight is None else f"; previews hold {self.foresight.agreement:.3f}"
        return f"the planner {verb} at {where}: {forecast}{ahead}"

    def _say_once(self) -> None:
        """In the log, the first time that plain decoding is expected to be faster."""
        if not self._is_said:
            LOG.info("%s", self.reason)
        self._is_said = True

    def prices(self, situation: Situation) -> Prices:
        """The costs of a situation, looked up once."""
        key = (situation.batch, round(situation.context / CONTEXT_STEP))
        if key not in self._prices:
            if len(self._prices) == _MOST_PRICES:
                self._prices.clear()
            n_rows = situation.batch * self.shape.verify
            context = key[1] * CONTEXT_STEP
            self._prices[key] = self.costs.prices(key[0], context, n_rows, self.shape.top_k)
        return self._prices[key]

    def level(self, made: Round, depth: int | NDArray[np.int64], gained: Floats) -> Level:
        """What children of the best k nodes of a level bring and cost; `gained` is K3's G.

        Several levels at once: depths as a column, gains in rows.
        """
        batch, verify = made.situation.batch, made.prices.verify
        rows = batch * (1 + depth + np.arange(gained.shape[-1]))
        seconds = verify[np.minimum(rows, len(verify) - 1)]
        tokens = batch * self.learnt.running.ratios[depth - 1] * gained
        return Level(tokens, seconds - seconds[..., :1])

    def settle(self, growth: Growth, known: Sequence[Widths]) -> Growth:
        """The cheapest recorded shape that is deep and wide enough; else the deepest."""
        assert isinstance(growth, Round) and growth.settled is not None
        depth, width = len(growth.settled), max(growth.settled, default=0)
        enough = [w for w in known if len(w) >= depth and max(w, default=0) >= width]
        if enough:
            return self._adopt(growth, min(enough, key=lambda w: (len(w), w)))
        return self._adopt(growth, max(known, key=lambda w: (len(w), w)))

    def prepare(self, growth: Growth | None, n_seats: int, is_steady: bool) -> int | None:
        """Leave the plan's rate, prices and corrections where the next launch takes them from.

        In a steady batch the number of rows is agreed on by what the last ones were worth, where
        more or fewer cost little: a verification that is launched in time then gains more than the
        rows that would have paid.
        """
        if not isinstance(growth, Round):
            return n_seats if is_steady else None  # roots alone
        offer, priced = self.offers.of(n_seats), growth.prices.verify
        # Rows beyond what the batch could ever verify are not for sale.
        seconds = priced[np.minimum(offer.sizes, len(priced) - 1)].copy()
        seconds[1:][offer.sizes[1:] >= len(priced)] = np.inf
        agreed = None
        batch = growth.situation.batch
        if is_steady:
            # An empty seat's root is verified too.
            rows = offer.sizes - (n_seats - batch)
            best = self.learnt.worth.best(batch, rows, seconds, growth.rate)
            if best is not None and _is_cheap(seconds, best, batch):
                agreed = int(offer.sizes[best])
                seconds[:best], seconds[best], seconds[best + 1 :] = np.inf, 0.0, np.inf
        offer.write(growth.rate, seconds, self.learnt.calibration.table())
        return agreed

    def select(
        self, kernels: Kernels, tree: DraftTree, selected_out: Tensor, count_out: Tensor
    ) -> None:
        """The forest that is worth most at the plan's rate, among the sizes on offer."""
        offer = self.offers.of(tree.tokens.shape[0])
        kernels["choose_planned_nodes"](
            cumu_scores=tree.scores,
            cumu_deltas=tree.depths,
            prev_indexs=tree.parents,
            row_sizes=offer.row_sizes,
            numbers=offer.send(),
            deepest=tree.deepest,
            verify_num=self.shape.verify,
            selected=selected_out,
            n_chosen=count_out,
        )

    def learn(self, lesson: Lesson, growth: Growth | None) -> None:
        """Calibrate on the verdict and bring the running averages up to date."""
        if lesson.gains is not None:
            known = self._gains[: len(lesson.gains)]
            known += LAST * (lesson.gains - known)
            go_on(self._gains, len(known))
        if not isinstance(growth, Round) or not any(n > 1 for n in lesson.n_rows):
            return
        rows = torch.arange(lesson.scores.shape[1])
        chosen = rows < torch.tensor(lesson.n_rows)[:, None]
        accepted = (rows[:, None] == lesson.path[:, None, :]).any(2) & chosen
        if self.foresight is not None:
            chosen = self.foresight.judge(lesson.n_run, chosen, accepted)
        priced, learnt = growth.prices.verify, self.learnt
        growth.seconds += float(priced[min(sum(lesson.n_rows), len(priced) - 1)])
        self._appraise(lesson, chosen, len(growth.fed) + 1)
        learnt.calibration.learn(lesson.scores, lesson.depths, chosen, accepted)
        n_levels, bins = len(growth.fed) + 1, self.shape.depth + 1
        taken, sent = (
            np.bincount(lesson.depths[nodes].numpy(), minlength=bins)[1 : n_levels + 1]
            / growth.situation.batch
            for nodes in (accepted, chosen)
        )
        learnt.running.follow(taken, sent, growth.gains)
        if not growth.is_exploring:
            n_tokens, batch = float(accepted.sum()), growth.situation.batch
            learnt.running.pace(batch, n_tokens, growth.seconds, growth.rate)

    def _planned(self, made: Round) -> Round:
        """The depth and width that are worth most by the gains of the drafts before."""
        values = self._values(made)[:, [n - 1 for n in self._levels]]
        if not (values > 0).any():
            return self._adopt(made, ())
        width, n_levels = np.unravel_index(int(values.argmax()), values.shape)
        return self._adopt(made, (self._widths[width],) * self._levels[n_levels])

    def _values(self, made: Round) -> Floats:
        """[width, levels]: tokens of a draft so wide and deep, less those its time is worth.

        Gains are averages over requests and rounds. Of a level that brings p tokens a request on
        average, about a share p of the requests have good nodes there, and no others are chosen:
        with all of them paid for, drafts at 32 x 1K were so shallow that a chain of 7 won.
        """
        depths = np.arange(1, self.shape.depth)[:, None]
        level = self.level(made, depths, self._gains[:-1].astype(np.float64))
        share = np.minimum(level.tokens / made.situation.batch, 1.0)
        worth = level.tokens - made.rate * share * level.verify
        # All levels are as wide as the widest; of their children any number may be chosen.
        worth = np.maximum.accumulate(worth, axis=1)[:, self._widths]
        values: Floats = (worth - made.rate * made.prices.draft[self._widths]).cumsum(axis=0).T
        return values

    def _adopt(self, made: Round, widths: Widths) -> Round:
        """A plan is judged by what is drafted, not by what was asked for."""
        made.settled, made.fed = widths, list(widths)
        made.gains = [float(self._gains[depth][width]) for depth, width in enumerate(widths)]
        made.seconds = made.prices.extend + sum(float(made.prices.draft[w]) for w in widths)
        return made

    def _appraise(self, lesson: Lesson, chosen: Tensor, n_levels: int) -> None:
        """Remember what the rows of a round were thought to be worth.

        A text leaves the verified paths somewhere, or goes on along them through what was drafted:
        so much is left for rows that were not verified. Without that bound they were worth the more
        the better the verified ones were, and a batch of one bought 16 rows for 3 tokens.
        """
        weights = corrected(lesson.scores, lesson.depths, self.learnt.calibration.table()) * chosen
        deepest = (lesson.depths * chosen).amax(1, keepdim=True)
        along = (weights * (lesson.depths == deepest)).sum(1).clamp(max=1.0)
        left = float((1 - along + along * (n_levels - deepest[:, 0]).clamp(min=0)).sum())
        seen = weights[chosen].double().numpy()
        self.learnt.worth.follow(len(chosen), seen, len(chosen) * self.shape.verify, left)

    @property
    def _levels(self) -> list[int]:
        return sorted({min(n, self.shape.depth - 1) for n in (*LEVELS, self.shape.depth)} - {0})

    @property
    def _widths(self) -> list[int]:
        top_k = self.shape.top_k
        return [width for width in WIDTHS if width < top_k] + [top_k]


def _is_cheap(seconds: Floats, best: int, batch: int) -> bool:
    """Whether the sizes beside the best one cost about what it costs."""
    steps = np.diff(seconds[max(best - 1, 0) : best + 2]) / batch
    return bool((steps[np.isfinite(steps)] <= _DEAR).all())


def _decide(planner: Planner, made: Round, depth: int, gain: Gain) -> int:
    """The number of nodes whose children are worth most beyond their cost."""
    if depth >= planner.shape.depth:
        return 0
    gained = np.asarray(torch.as_tensor(gain()).cpu(), dtype=np.float64)
    level = planner.level(made, depth, gained)
    values = level.tokens - made.rate * (made.prices.draft + level.verify)
    width = int(values.argmax())  # value 0 at width 0: the tree ends here
    if width:
        made.fed.append(width)
        made.gains.append(float(gained[width]))
        made.seconds += float(made.prices.draft[width])
    return width
