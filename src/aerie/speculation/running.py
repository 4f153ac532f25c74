"""What a planner remembers between rounds: running averages, and spells without drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aerie.costs.table import Prices
from aerie.speculation.policy import TreeShape

Floats = NDArray[np.float64]

MEMORY = 0.95  # share of the past in the averages, a round
# Before anything is known: what one more level adds, relative to the level above it.
FIRST_RATIO = 0.75
# The forecast counts as so many rounds where the running speed of a batch size begins.
FORECAST_ROUNDS = 8.0
FIRST_SPELL, LONGEST_SPELL = 16, 512
PROBE_ROUNDS = 2


@dataclass
class Spell:
    """Rounds without drafts, each spell twice as long as the last, with a short look between."""

    left: int = 0
    length: int = FIRST_SPELL
    looks: int = 0  # drafting rounds to come before the next spell

    def allows(self, pays: bool) -> bool:
        """Whether this round drafts."""
        if pays:
            self.left, self.length, self.looks = 0, FIRST_SPELL, 0
            return True
        if self.left:
            self.left -= 1
            return False
        if self.looks:
            self.looks -= 1
            return True
        self.left, self.looks = self.length - 1, PROBE_ROUNDS
        self.length = min(2 * self.length, LONGEST_SPELL)
        return False


@dataclass
class Pace:
    """Tokens and seconds of the recent rounds of one batch size."""

    tokens: float
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """The draft that is expected to do best, beside a round without one; per request."""

    levels: int
    tokens: float  # that the draft adds
    seconds: float  # of a round with it, all requests together
    plain: float  # seconds of a round without

    @property
    def pays(self) -> bool:
        """Whether it is expected to be faster than plain decoding."""
        return self.tokens > self.break_even

    @property
    def break_even(self) -> float:
        """Tokens it would have to add."""
        return self.seconds / self.plain - 1

    @property
    def rate(self) -> float:
        """Tokens per second of one request."""
        return (1 + self.tokens) / self.seconds

    def __str__(self) -> str:
        """In the words of a page or a log."""
        extra = 1e3 * (self.seconds - self.plain)
        return (
            f"the best draft ({self.levels} level{'s' * (self.levels > 1)}) costs {extra:.1f} ms on"
            f" top of a round of {1e3 * self.plain:.1f} ms and is expected to add"
            f" {self.tokens:.2f} tokens; it breaks even at {self.break_even:.2f}"
        )


@dataclass(eq=False)
class Running:
    """Averages over drafting rounds, per request."""

    grown: Floats  # [depth] accepted nodes of the level below, and what they are measured by:
    gains: Floats  # [depth] K3's gain of the nodes that were fed to grow it
    accepted: Floats  # [depth] accepted nodes of a level
    verified: Floats  # [depth] verified nodes of a level
    paces: dict[int, Pace] = field(default_factory=dict)  # by batch size

    @classmethod
    def at_start(cls, depth: int) -> Running:
        """Guesses, until there is something to remember."""
        guess: Floats = np.power(FIRST_RATIO, np.arange(1, depth + 1), dtype=np.float64)
        return cls(FIRST_RATIO * guess, guess.copy(), guess.copy(), np.ones(depth))

    @property
    def ratios(self) -> Floats:
        """[depth] tokens to expect from the next level, for one unit of this level's gain."""
        return self.grown / self.gains

    def forecast(self, batch: int, prices: Prices, shape: TreeShape) -> Forecast:
        """The best depth, if rounds go on as they have been."""
        # A level that was not drafted lately remembers better times than the one above it.
        gained = np.cumsum(np.minimum.accumulate(self.accepted))
        rows = batch * np.minimum(1 + np.cumsum(self.verified), shape.verify)
        seconds = prices.verify[np.rint(rows).astype(np.int64)] + prices.extend
        seconds = seconds + prices.draft[1] * np.arange(shape.depth)
        best = int(((1 + gained) / seconds).argmax())
        return Forecast(best + 1, float(gained[best]), float(seconds[best]), prices.plain)

    def rate(self, batch: int, forecast: float) -> float:
        """The running speed of a batch size in tokens per second."""
        pace = self.paces.get(batch)
        return forecast if pace is None else pace.tokens / pace.seconds

    def follow(self, accepted: Floats, verified: Floats, gains: list[float]) -> None:
        """Take in one round: nodes accepted and verified at each level that was drafted."""
        n_levels = len(accepted)
        for average, values in ((self.accepted, accepted), (self.verified, verified)):
            average[:n_levels] += (1 - MEMORY) * (values - average[:n_levels])
        fed = np.asarray(gains)
        for average, values in ((self.grown, accepted[1:]), (self.gains, fed)):
            average[: len(fed)] += (1 - MEMORY) * (values - average[: len(fed)])
        if len(fed):
            # Below what was drafted, gains are taken to be as true as those of the last level.
            self.grown[len(fed) :] = self.ratios[len(fed) - 1] * self.gains[len(fed) :]

    def pace(self, batch: int, tokens: float, seconds: float, rate: float) -> None:
        """Take in the tokens one round emitted and what it cost by the table."""
        spent = FORECAST_ROUNDS * seconds
        pace = self.paces.setdefault(batch, Pace(spent * rate, spent))
        pace.tokens = MEMORY * pace.tokens + tokens
        pace.seconds = MEMORY * pace.seconds + seconds


def go_on(gains: NDArray[np.float32], n_levels: int) -> None:
    """Levels that were not drafted go on as the last that was: gains [levels, K+1], in place.

    They fall by what the last one fell. With guesses in their place a deep draft was never tried
    where it paid: modelled at 1 x 1K, 1,114 tokens a second and 1,331 with this (H200's prices).
    """
    last, above = gains[n_levels - 1], gains[max(n_levels - 2, 0)]
    fall = min(1.0, float(last[-1]) / max(float(above[-1]), 1e-6))
    gains[n_levels:] = last * fall ** np.arange(1, len(gains) - n_levels + 1)[:, None]
