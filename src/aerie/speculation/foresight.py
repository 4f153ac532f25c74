"""When the target should run on over a part of its KV before a full pass, and how far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.costs.table import Prices
from aerie.speculation.policy import Situation
from aerie.speculation.preview import PASSES, Preview, PreviewRule
from aerie.speculation.running import Forecast

LEVELS = (4, 8)  # of a preview's drafts, chains: few, for each has a graph
# Previews are left alone where the full KV agrees less often, a token: runs would mostly break.
LEAST_AGREEMENT = 0.97
# What is assumed at first, as if so many tokens had been judged; the share of the past a round.
FIRST_AGREEMENT, PRIOR, MEMORY = 0.985, 64.0, 0.98
LOOK_EVERY = 64  # rounds, while they are left alone: the text changes its nature

PricesOf = Callable[[Situation], Prices]


@dataclass(frozen=True)
class Quote:
    """What a choice between previews is made from; seconds are those of the whole batch."""

    batch: int
    levels: int  # of the draft that is expected to do best
    tokens: float  # that a round with it emits for one request
    rate: float  # tokens a second that time is worth
    full: Prices  # of passes over the whole text,
    near: Prices  # over what a preview looks at,
    none: Prices  # and over no text at all

    def seconds(self, passed: Prices, rows: float, levels: int) -> float:
        """Of a draft, and of a pass over so many rows of each request."""
        n_rows = min(round(self.batch * rows), len(passed.verify) - 1)
        drafted = self.full.extend + (levels - 1) * float(self.full.draft[1])
        return drafted + float(passed.verify[n_rows])

    @property
    def choosing(self) -> float:
        """To weigh all blocks and to copy some; a pass reads keys and values of a text once."""
        full, near, none = (float(p.verify[self.batch]) for p in (self.full, self.near, self.none))
        return max(full - none, 0.0) / 2 + 2 * max(near - none, 0.0)


@dataclass(eq=False)
class Foresight:
    """What rounds have taught about previews. No token ever depends on it."""

    rule: PreviewRule
    depth: int  # levels of a draft at most
    held: float = FIRST_AGREEMENT * PRIOR
    judged: float = PRIOR
    rounds_alone: int = 0

    @property
    def agreement(self) -> float:
        """Share of a run's tokens that the full KV holds, each judged behind those before it."""
        return self.held / self.judged

    @property
    def plans(self) -> tuple[Preview, ...]:
        """All that are ever chosen, small ones first."""
        levels = sorted({min(levels, self.depth) for levels in LEVELS})
        found = [self.rule.fitting(n, (1,) * (k - 1), k + 1) for k in levels for n in PASSES]
        return tuple(dict.fromkeys(plan for plan in found if plan is not None))

    def choose(
        self, where: Situation, rate: float, forecast: Forecast, prices: PricesOf
    ) -> tuple[Preview | None, float]:
        """What comes before a round, if that is expected to pay, and the seconds it adds."""
        if where.context < self.rule.threshold:
            return None, 0.0
        contexts = (where.context, self.rule.n_near, 0)
        priced = [prices(Situation(where.batch, context)) for context in contexts]
        quote = Quote(where.batch, forecast.levels, 1 + forecast.tokens, rate, *priced)
        found = self.best(quote)
        if found is None:
            return None, 0.0
        last = quote.seconds(quote.full, found.rows, found.rows - 1)
        return found, self.expected(quote, found)[1] - last

    def best(self, quote: Quote) -> Preview | None:
        """The preview that is worth most at the quote's rate; None: a full pass alone is."""
        deepest = max((plan.rows for plan in self.plans), default=0)
        rows = min((p.rows for p in self.plans if p.rows > quote.levels), default=deepest)
        plans = [plan for plan in self.plans if plan.rows == rows]
        if self.agreement < LEAST_AGREEMENT:
            self.rounds_alone += 1
            return plans[0] if plans and self.rounds_alone % LOOK_EVERY == 0 else None
        alone = quote.seconds(quote.full, quote.levels + 1, quote.levels)
        values: dict[Preview | None, float] = {None: quote.batch * quote.tokens}
        values[None] -= quote.rate * alone
        for plan in plans:
            tokens, seconds = self.expected(quote, plan)
            values[plan] = quote.batch * tokens - quote.rate * seconds
        return max(values, key=lambda plan: values[plan])

    def expected(self, quote: Quote, plan: Preview) -> tuple[float, float]:
        """Tokens of one request, and seconds of the batch, with a preview before the round."""
        run, agreed = plan.n_passes * quote.tokens, min(self.agreement, 1 - 1e-9)
        whole = agreed**run  # all of the run holds, and the round goes on behind it
        tokens = agreed * (1 - whole) / (1 - agreed) + whole * quote.tokens + (1 - whole)
        ahead = quote.seconds(quote.near, plan.rows, plan.rows - 1)
        last = quote.seconds(quote.full, plan.rows + run, plan.rows - 1)
        return tokens, quote.choosing + plan.n_passes * ahead + last

    def judge(self, n_run: tuple[int, ...], chosen: Tensor, accepted: Tensor) -> Tensor:
        """Learn how runs fared; of the rows [B, M] chosen, those that teach something else too.

        Trees behind a run that broke were never looked at.
        """
        run, rows = torch.tensor(n_run)[:, None], torch.arange(chosen.shape[1])
        held = (accepted & (rows > 0) & (rows <= run)).sum(dim=1, keepdim=True)
        if any(n_run):
            self.held = MEMORY * self.held + int(held.sum())
            self.judged = MEMORY * self.judged + int((held + (held < run)).sum())
        return chosen & ((held == run) | (rows <= run))
