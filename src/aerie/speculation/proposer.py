"""What a proposer is: it follows the target's features and proposes a tree for each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from aerie.speculation.policy import Growth
from aerie.speculation.tree import DraftTree


@dataclass(frozen=True, eq=False)
class Features:
    """What the target computed for rows that are committed now, with the token after each.

    Row i belongs to position `start + i`; `next_tokens[i]` stands at the position after it.
    """

    start: int
    taps: Tensor  # [n, captures, hidden]
    next_tokens: Tensor  # [n] i64

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + len(self.next_tokens)

    def cut(self, start: int, end: int) -> Features:
        """The rows of positions [start, end), copied: nothing else is kept alive."""
        low = min(max(start - self.start, 0), len(self.next_tokens))
        high = max(min(end - self.start, len(self.next_tokens)), low)
        taps = self.taps[low:high].clone()
        return Features(self.start + low, taps, self.next_tokens[low:high].clone())


@dataclass(frozen=True, eq=False)
class Followed:
    """One request as a proposer sees it."""

    slots: Tensor  # [covered] i32, KV slot of every position, scratch positions included
    seq_len: int  # tokens with KV in the target
    text: Sequence[int]  # committed tokens; when drafting, the root is the last
    features: tuple[Features, ...]  # of committed rows it has not taken in, in order


@dataclass(frozen=True, eq=False)
class Roots:
    """What drafting starts from: the draft's view of the token after each request's root."""

    hidden: Tensor  # [B, hidden]
    logits: Tensor  # [B, draft vocab] f32
    is_known: Tensor  # [B] bool, false where the draft has seen no feature yet


class Proposer(Protocol):
    """Proposes continuations. Never touches the target; may keep its own KV in its own pool."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Boundaries of the target whose residual stream it needs."""
        ...

    @property
    def scratch(self) -> int:
        """Positions beyond seq_len whose slots it may overwrite while drafting."""
        ...

    def remember(self, pending: list[Features]) -> list[Features]:
        """The part of features that wait to be taken in which it may still read."""
        ...

    def extend(self, drafting: list[Followed], waiting: list[Followed]) -> Roots | None:
        """Take in the features of all requests; the roots of those that draft this round.

        `waiting` requests are still reading their prompt. None when it needs no roots.
        """
        ...

    def grow(
        self, drafting: list[Followed], roots: Roots | None, growth: Growth | None
    ) -> DraftTree:
        """A tree on the root of every drafting request, as large as `growth` lets it become.

        A request it has nothing for gets nodes of score 0, which are never verified.
        """
        ...
