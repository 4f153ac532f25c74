"""Policies of captured rounds: the shape is fixed at launch, the choice is made on the device.

A captured draft cannot ask the host after every layer. So a policy says before the launch how many
nodes each level will feed, from what the last report told it, and leaves on the device whatever its
choice of nodes needs. What became of the chosen nodes comes back with the next report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aerie.speculation.policy import Situation, TreeShape
from aerie.speculation.tree import DraftTree

Widths = tuple[int, ...]
Gains = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a report tells about the trees it verified, in host values; one row per request."""

    scores: Tensor  # [B, M] f32 of the verified nodes, in row order
    depths: Tensor  # [B, M] i64
    n_rows: list[int]  # verified, the root included
    path: Tensor  # [B, D+1] i64, accepted rows from K6
    gains: Gains  # [levels, K+1] of the draft that followed


class RoundPolicy(Protocol):
    """Decides every captured round. Never decides a token."""

    @property
    def learns(self) -> bool:
        """Whether reports carry lessons, and rounds without drafts keep their features."""
        ...

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        """All that `open` may answer."""
        ...

    def most_rows(self, n_slots: int) -> int:
        """Rows that so many trees together are given at most."""
        ...

    def open(self, situation: Situation) -> Widths | None:
        """Nodes each level of the coming draft feeds; None: the round does not draft."""
        ...

    def settle(self, known: Sequence[Widths]) -> Widths:
        """The nearest to what `open` answered among these, which is then drafted."""
        ...

    def prepare(self, n_slots: int, is_steady: bool) -> int | None:
        """Leave what the choice of a bucket needs where the coming launch finds it.

        A policy may agree on how many rows it will be, all slots together, while a batch
        `is_steady`. None: as many as turn out to pay.
        """
        ...

    def select(
        self, tree: DraftTree, widths: Widths, chosen_out: Tensor, count_out: Tensor
    ) -> None:
        """Write the nodes to verify next and how many they are; captured, so no host values.

        `widths` are the nodes each level fed, as `open` said.
        """
        ...

    def learn(self, lesson: Lesson) -> None:
        """What became of the nodes chosen in the round before."""
        ...


@dataclass(frozen=True, eq=False)
class FixedRounds:
    """The same tree every round; `choose` is one launch where the backend has it."""

    shape: TreeShape
    choose: Callable[[Tensor, int, Tensor, Tensor], None]
    learns: bool = False

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        """The widest tree of the shape; a tree of one node needs no draft."""
        wide = (self.shape.top_k,) * (self.shape.depth - 1)
        return (wide if self.shape.verify > 1 else None,)

    def most_rows(self, n_slots: int) -> int:
        """Every tree as large as it may be."""
        return n_slots * min(self.shape.verify, self.shape.capacity)

    def open(self, situation: Situation) -> Widths | None:
        """Always the same."""
        return self.shapes[0]

    def settle(self, known: Sequence[Widths]) -> Widths:
        """There is but one."""
        return known[0]

    def prepare(self, n_slots: int, is_steady: bool) -> int | None:
        """The choice needs nothing; its largest size is known anyway."""
        return None

    def select(
        self, tree: DraftTree, widths: Widths, chosen_out: Tensor, count_out: Tensor
    ) -> None:
        """The best nodes of each request by path score."""
        self.choose(tree.scores, self.shape.verify, chosen_out, count_out)

    def learn(self, lesson: Lesson) -> None:
        """Nothing to learn."""
