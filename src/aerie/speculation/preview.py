"""Previews: when the target should run on over a part of its KV before a full pass, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aerie.costs.table import Prices

PASSES = (1, 2, 4)  # of a preview; fewer graphs are recorded for few of them
LEVELS = (4, 8)  # of a preview's drafts, chains
# Previews are left alone where the full KV agrees less often, a token: runs would mostly break.
LEAST_AGREEMENT = 0.97
# What is assumed at first, as if so many tokens had been judged; the share of the past a round.
FIRST_AGREEMENT, PRIOR, MEMORY = 0.985, 64.0, 0.98
LOOK_EVERY = 64  # rounds, while they are left alone: the text changes its nature


@dataclass(frozen=True)
class Preview:
    """Passes over a part of the KV before a draft, each behind a draft of its own."""

    n_passes: int
    widths: tuple[int, ...]  # nodes that each level of those drafts feeds
    rows: int  # verified in each pass, of one request


@dataclass(frozen=True)
class PreviewRule:
    """When previews are considered, and what they may be."""

    threshold: int  # mean context from which on
    n_near: int  # positions a preview looks at
    longest_run: int  # tokens it may leave
    most_passes: int

    def allows(self, context: float, may_preview: bool) -> bool:
        """Whether a round may have one; `may_preview` is what its requests say."""
        return may_preview and context >= self.threshold

    def fitting(self, n_passes: int, widths: tuple[int, ...], rows: int) -> Preview | None:
        """A preview of at most so many passes whose longest run fits; None: not even one does."""
        most = min(n_passes, self.most_passes, self.longest_run // (len(widths) + 2))
        return Preview(most, widths, rows) if most else None


@dataclass(frozen=True)
class Quote:
    """What a choice between previews is made from; seconds are those of the whole batch."""

    batch: int
    levels: int  # of the draft that is expected to do best
    tokens: float  # that a round with it emits for one request
    full: Prices  # over the whole text
    near: Prices  # over what a preview looks at
    none: Prices  # over no text at all
    rate: float  # tokens a second that time is worth

    def round(self, passed: Prices, rows: float, levels: int) -> float:
        """Seconds of a draft and of a pass over so many rows."""
        drafted = self.full.extend + (levels - 1) * float(self.full.draft[1])
        return drafted + float(passed.verify[min(round(rows), len(passed.verify) - 1)])

    @property
    def choosing(self) -> float:
        """Seconds to weigh all blocks and to copy some: a pass reads keys and values once."""
        n = self.batch
        full, near, none = (float(p.verify[n]) for p in (self.full, self.near, self.none))
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
        """All that are ever chosen."""
        found = {
            self.rule.fitting(n, (1,) * (levels - 1), levels + 1)
            for n in PASSES
            for levels in sorted({min(levels, self.depth) for levels in LEVELS})
        }
        kept = [plan for plan in found if plan is not None]
        return tuple(sorted(kept, key=lambda plan: (plan.rows, plan.n_passes)))

    def best(self, quote: Quote) -> Preview | None:
        """The preview that is worth most at the quote's rate; None: a full pass alone is."""
        plans = self._of_depth(quote.levels)
        if self.agreement < LEAST_AGREEMENT:
            self.rounds_alone += 1
            is_look = self.rounds_alone % LOOK_EVERY == 0
            return plans[0] if plans and is_look else None
        n, levels = quote.batch, quote.levels
        alone = quote.round(quote.full, n * (levels + 1), levels)
        values: dict[Preview | None, float] = {None: n * quote.tokens - quote.rate * alone}
        for plan in plans:
            tokens, seconds = self.expected(quote, plan)
            values[plan] = n * tokens - quote.rate * seconds
        return max(values, key=lambda plan: values[plan])

    def expected(self, quote: Quote, plan: Preview) -> tuple[float, float]:
        """Tokens of one request, and seconds of the batch, with a preview before the round."""
        n, levels = quote.batch, plan.rows - 1
        run, agreed = plan.n_passes * quote.tokens, min(self.agreement, 1 - 1e-9)
        whole = agreed**run  # the whole run holds, and the round goes on behind it
        held = agreed * (1 - whole) / (1 - agreed)
        ahead = quote.round(quote.near, n * plan.rows, levels)
        last = quote.round(quote.full, n * (plan.rows + run), levels)
        tokens = held + whole * quote.tokens + (1 - whole)
        return tokens, quote.choosing + plan.n_passes * ahead + last

    def learn(self, n_run: Sequence[int], n_held: Sequence[int]) -> None:
        """Tokens of each request's run, and how many of them the full pass held."""
        judged = [held + (held < run) for run, held in zip(n_run, n_held, strict=True)]
        if any(n_run):
            self.held = MEMORY * self.held + sum(n_held)
            self.judged = MEMORY * self.judged + sum(judged)

    def _of_depth(self, levels: int) -> list[Preview]:
        """Plans whose drafts are the shallowest that are deep enough, or the deepest."""
        rows = sorted({plan.rows for plan in self.plans})
        enough = [own for own in rows if own > levels] or rows[-1:]
        return [plan for plan in self.plans if plan.rows == enough[0]] if enough else []
