"""What `aerie bench engine` runs: points, policies and prompts, as data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from aerie.bench.engine.cast import Cast
from aerie.config import LIMITS
from aerie.costs.table import CostTable
from aerie.speculation.offer import Offers
from aerie.speculation.planner import Planner
from aerie.speculation.policy import FixedTree, Growth, Policy, Situation, TreeShape
from aerie.text.heldout import read_tokens

SHORT = 512
CUT = 64  # tokens between the ends of prompts that are cut from one document
DOCUMENTS = 2  # long prompts of one point come from so many documents


@dataclass(frozen=True)
class Contract:
    """Everything needed to run the benchmark again."""

    batches: tuple[int, ...] = (1, 4, 8, 16)
    contexts: tuple[int, ...] = (512, 8192)
    # New tokens of a run, all requests together, and never fewer than `least` for each.
    tokens: int = 256
    least: int = 32
    repeats: int = 9
    explore_every: int = 24

    def new_tokens(self, batch: int) -> int:
        """Tokens every request of a point writes."""
        return max(self.tokens // batch, self.least)

    @property
    def digest(self) -> str:
        """A name for exactly this contract."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class WatchedPlanner(Planner):
    """The planner, and what it opened last: None for a round without a draft."""

    last: Growth | None = None

    def open(self, situation: Situation) -> Growth | None:
        """As it is, and remembered."""
        self.last = super().open(situation)
        return self.last


def _planner(costs: CostTable, explore_every: int) -> Policy:
    limits = LIMITS["planner"]
    shape = TreeShape(limits.top_k, limits.depth, limits.nodes)
    return WatchedPlanner(shape, costs, explore_every, Offers(None, shape.verify, "cpu"), True)


def _cast(costs: CostTable, explore_every: int) -> Policy:
    return Cast(TreeShape(8, 8, 64), costs)


def _fixed(*numbers: int) -> Callable[[CostTable, int], Policy]:
    return lambda costs, explore_every: FixedTree(TreeShape(*numbers))


PLAIN, PLANNER = "plain", "planner"
POLICIES: dict[str, Callable[[CostTable, int], Policy]] = {
    PLAIN: _fixed(1, 1, 1),
    "chain3": _fixed(1, 3, 4),
    "chain5": _fixed(1, 5, 6),
    "chain7": _fixed(1, 7, 8),
    "tree16": _fixed(8, 5, 16),
    "tree32": _fixed(8, 5, 32),
    "tree60": _fixed(8, 6, 60),
    "cast": _cast,
    PLANNER: _planner,
}
FIXED = tuple(name for name in POLICIES if name not in (PLAIN, PLANNER, "cast"))


def choose_prompts(
    context: int, encode: Callable[[str], Sequence[int]]
) -> Callable[[int, int], list[list[int]]]:
    """Prompts of a context: (batch, repeat) to token lists.

    Short ones are held-out documents' own beginnings, other ones every repeat. Long ones are cut
    from a few documents, some tokens apart, the same every repeat: a document is then read once.
    """
    if context <= SHORT:
        return lambda batch, repeat: read_tokens(encode, context, batch, offset=repeat * batch)
    documents = read_tokens(encode, context, DOCUMENTS)

    def cuts(batch: int, repeat: int) -> list[list[int]]:
        return [
            documents[index % DOCUMENTS][: context - CUT * (index // DOCUMENTS)]
            for index in range(batch)
        ]

    return cuts
