"""What fast numerics may move, and how many tokens were decided more closely than that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from aerie.by_context import at_most

# What other company in the batch may move of a logit between 1 and 2: so many steps of the dtype.
# bfloat16: where texts parted in `reports/round_near_ties.json` (63 times; one H200, 8B geometry),
# the two choices were at most 3 steps apart by a pass in bfloat16, 56 times at most 1. float16
# rounds the same sums to another step, and was not measured. float32: no text has parted on that
# GPU; on a CPU a gap moved by 36 steps at most (`tests/e2e/test_near_ties.py`), taken threefold.
LIMITS: Mapping[str, float] = {
    "bfloat16": 3 * 2.0**-7,
    "float16": 3 * 2.0**-10,
    "float32": 128 * 2.0**-23,
}
# Tokens before a decision, and requests that are decided together: up to each of these, or more.
CONTEXTS, BATCHES = (1024, 8192, 32768), (1, 8, 32)

Cell = tuple[str, str]  # context and batch


def cell_of(context: int, batch: int) -> Cell:
    """Where a token is counted."""
    return at_most(CONTEXTS, context), at_most(BATCHES, batch)


@dataclass
class NearTies:
    """Tokens that fast numerics decided, and the near ties among them, by context and batch.

    Exact numerics count neither, and so does the rule coins, which compares no two sums.
    """

    tokens: Counter[Cell] = field(default_factory=Counter)
    near: Counter[Cell] = field(default_factory=Counter)

    def count(self, cell: Cell, n_tokens: int, n_near: int) -> None:
        """Take in what a round decided for one request."""
        self.tokens[cell] += n_tokens
        self.near[cell] += n_near

    def add(self, other: NearTies) -> None:
        """Take in what another one counted."""
        self.tokens.update(other.tokens)
        self.near.update(other.near)

    @property
    def counts(self) -> tuple[Counter[Cell], Counter[Cell]]:
        """Both, tokens first."""
        return self.tokens, self.near

    @property
    def n_tokens(self) -> int:
        """All that were decided."""
        return self.tokens.total()

    @property
    def n_near(self) -> int:
        """All near ties."""
        return self.near.total()

    @property
    def rate(self) -> float | None:
        """Near ties of all tokens; None where nothing was counted."""
        return self.n_near / self.n_tokens if self.n_tokens else None

    def __str__(self) -> str:
        if self.rate is None:
            return "near ties: not counted (exact numerics, or nothing was decided)"
        return f"near ties: {self.rate:.1e} of {self.n_tokens:,} tokens"
