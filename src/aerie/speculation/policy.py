"""What a policy is: how wide and deep to draft, which nodes to verify, what to learn from it.

A policy is asked before a draft is launched. A launcher whose host may look between layers then
asks the growth after every layer; a captured draft has its widths fixed, by what was learnt before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aerie.kernels.registry import Kernels
from aerie.speculation.preview import PASSES, Preview, PreviewRule
from aerie.speculation.tree import DraftTree

Widths = tuple[int, ...]  # nodes each level feeds
Gain = Callable[[], Any]  # K3's G [K+1] of the layer just stored, computed when asked


@dataclass(frozen=True)
class TreeShape:
    """Bounds of a tree: every frontier node gets `top_k` children, at most as many go on."""

    top_k: int
    depth: int
    verify: int

    def __str__(self) -> str:
        """In the words of a page or a log."""
        if self.verify == 1:
            return "plain decoding"
        kind = "a chain" if self.top_k == 1 else f"a tree of top-k {self.top_k},"
        return f"{kind} of depth {self.depth}, {self.verify} rows verified,"

    @property
    def capacity(self) -> int:
        """Nodes per request, the root and every candidate included."""
        return 1 + self.top_k + (self.depth - 1) * self.top_k * self.top_k

    @property
    def fed(self) -> int:
        """Nodes fed to the draft in one round, per request."""
        return (self.depth - 1) * self.top_k


@dataclass(frozen=True)
class Situation:
    """What a round starts from."""

    batch: int  # requests that decode; 0: none does, or none wants drafts
    context: float  # mean tokens with KV in the target
    may_preview: bool = False  # no option of a request and no limit stands against it


class Growth(Protocol):
    """One round's drafting."""

    @property
    def widths(self) -> Widths | None:
        """Nodes each level feeds, where that is settled; None: ask after every layer."""
        ...

    @property
    def preview(self) -> Preview | None:
        """What comes before it; None: nothing."""
        ...

    def next_width(self, depth: int, gain: Gain) -> int:
        """Nodes of layer `depth` to feed to the draft, at most top_k; 0 ends the tree."""
        ...


@dataclass(frozen=True)
class Settled:
    """A draft whose widths were decided before it began."""

    widths: Widths
    preview: Preview | None = None

    def next_width(self, depth: int, gain: Gain) -> int:
        """As decided; what a layer would gain is not asked."""
        return self.widths[depth - 1] if depth <= len(self.widths) else 0


@dataclass(frozen=True, eq=False)
class Lesson:
    """What became of the trees that were verified, in host values; one row per request."""

    scores: Tensor  # [B, M] f32 of the verified nodes, in row order
    depths: Tensor  # [B, M] i64
    n_rows: list[int]  # verified, the root included
    path: Tensor  # [B, D+1] i64, accepted rows from K6
    gains: NDArray[np.float32] | None = None  # [levels, K+1] of the last draft, if it was weighed
    n_run: tuple[int, ...] = ()  # of the rows behind the root, those that a preview left; or none


class Policy(Protocol):
    """Decides every round. Never decides a token: any policy gives the same text."""

    @property
    def shape(self) -> TreeShape:
        """The largest tree it ever asks for."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it wants lessons, and may leave the draft alone for a while."""
        ...

    @property
    def reason(self) -> str:
        """Why the last round drafted, or did not, in one sentence for people."""
        ...

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        """All that a captured round may draft; None: nothing."""
        ...

    @property
    def previews(self) -> tuple[Preview, ...]:
        """What may come before a captured draft."""
        ...

    def most_rows(self, n_seats: int) -> int:
        """Rows that so many trees together are given at most."""
        ...

    def open(self, situation: Situation) -> Growth | None:
        """How this round drafts; None: it does not, and the draft may do nothing at all."""
        ...

    def settle(self, growth: Growth, known: Sequence[Widths]) -> Growth:
        """The nearest to what `open` answered among shapes that were recorded."""
        ...

    def prepare(self, growth: Growth | None, n_seats: int, is_steady: bool) -> int | None:
        """Leave what the choice of a batch needs where the coming launch finds it.

        A policy may agree on how many rows it will be, all seats together, while a batch
        `is_steady`. None: as many as turn out to pay.
        """
        ...

    def select(
        self, kernels: Kernels, tree: DraftTree, selected_out: Tensor, count_out: Tensor
    ) -> None:
        """Write the nodes to verify next and how many they are; captured, so no host values.

        `selected_out` [B, N] bool, `count_out` [B] i32.
        """
        ...

    def learn(self, lesson: Lesson, growth: Growth | None) -> None:
        """What became of the trees that `growth` drafted."""
        ...


@dataclass(frozen=True)
class FixedTree:
    """The same shape every round: chains, and EAGLE-2's dynamic trees."""

    shape: TreeShape
    previewed: PreviewRule | None = None
    learns: bool = False

    @property
    def previews(self) -> tuple[Preview, ...]:
        """The one that long contexts get."""
        return () if self._preview is None else (self._preview,)

    @property
    def _preview(self) -> Preview | None:
        widths = self.shapes[0]
        if self.previewed is None or widths is None:
            return None
        rows = min(self.shape.verify, self.shape.capacity)
        return self.previewed.fitting(PASSES[-1], widths, rows)

    @property
    def reason(self) -> str:
        """It was asked for."""
        return f"{self.shape} in every round"

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        """The widest tree of the shape; a tree of one node needs no draft."""
        wide = (self.shape.top_k,) * (self.shape.depth - 1)
        return (wide if self.shape.verify > 1 else None,)

    def most_rows(self, n_seats: int) -> int:
        """Every tree as large as it may be."""
        return n_seats * min(self.shape.verify, self.shape.capacity)

    def open(self, situation: Situation) -> Growth | None:
        """Always where a request decodes."""
        widths = self.shapes[0]
        if widths is None or not situation.batch:
            return None
        is_long = self.previewed is not None and situation.context >= self.previewed.threshold
        return Settled(widths, self._preview if is_long and situation.may_preview else None)

    def settle(self, growth: Growth, known: Sequence[Widths]) -> Growth:
        """There is but one."""
        return growth

    def prepare(self, growth: Growth | None, n_seats: int, is_steady: bool) -> int | None:
        """The choice needs nothing; its largest size is known anyway."""
        return None

    def select(
        self, kernels: Kernels, tree: DraftTree, selected_out: Tensor, count_out: Tensor
    ) -> None:
        """The best nodes of each request by path score."""
        kernels["choose_best_nodes"](
            cumu_scores=tree.scores,
            verify_num=self.shape.verify,
            selected=selected_out,
            n_chosen=count_out,
        )

    def learn(self, lesson: Lesson, growth: Growth | None) -> None:
        """Nothing to learn."""
