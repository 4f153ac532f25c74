"""No proposal at all: a tree of one node is plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aerie.speculation.policy import Growth
from aerie.speculation.proposer import Features, Followed, Roots
from aerie.speculation.tree import DraftTree, root_trees


@dataclass(frozen=True)
class PlainProposer:
    """Proposes nothing and needs nothing."""

    device: str
    taps: tuple[int, ...] = ()
    scratch: int = 0

    def remember(self, pending: list[Features]) -> list[Features]:
        """It never reads any; the latest tell how far the text has come."""
        return pending[-1:]

    def extend(self, drafting: list[Followed], waiting: list[Followed]) -> Roots | None:
        """Nothing to follow."""
        return None

    def grow(
        self, drafting: list[Followed], roots: Roots | None, growth: Growth | None
    ) -> DraftTree:
        """The roots alone."""
        ends = [request.text[-1] for request in drafting]
        return root_trees(torch.tensor(ends, dtype=torch.int64, device=self.device))
