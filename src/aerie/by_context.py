"""Acceptance by context: rounds that drafted and what they accepted, by the tokens before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

# Tokens before a round: up to each of these, or more.
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
MORE = "more"


def at_most(bounds: tuple[int, ...], value: int) -> str:
    """The first bound that holds a value, as a label."""
    return next((str(bound) for bound in bounds if value <= bound), MORE)


@dataclass
class ByContext:
    """Drafts and accepted tokens by the context they were made at."""

    drafts: Counter[str] = field(default_factory=Counter)  # rounds with at least one draft node
    accepted: Counter[str] = field(default_factory=Counter)  # draft tokens

    @classmethod
    def total(cls, parts: Iterable[ByContext]) -> ByContext:
        """All parts together."""
        found = cls()
        for part in parts:
            found.drafts.update(part.drafts)
            found.accepted.update(part.accepted)
        return found

    def count(self, context: int, n_accepted: int) -> None:
        """Take in one round that drafted behind so many tokens."""
        label = at_most(CONTEXTS, context)
        self.drafts[label] += 1
        self.accepted[label] += n_accepted

    def lengths(self) -> dict[str, dict[str, float]]:
        """Of each context that was met, shortest first: drafts, accepted, acceptance length."""
        labels = [label for label in (*map(str, CONTEXTS), MORE) if self.drafts[label]]
        return {
            label: {
                "num_drafts": self.drafts[label],
                "num_accepted_tokens": self.accepted[label],
                "mean_acceptance_length": round(1 + self.accepted[label] / self.drafts[label], 4),
            }
            for label in labels
        }
