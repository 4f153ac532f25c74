"""What the planner is held against: CAST's rule as a policy, and the oracle in hindsight.

CAST is our reading of arXiv 2510.26577: one width and one verify size for the whole batch. Cost is
counted in plain decoding steps; a level, a width or a row goes in while it brings at least so many
tokens per step. The thresholds are its published order of magnitude, not tuned here. It decides on
the host, layer by layer, so its rounds are called one by one and never captured. The oracle is the
best single (depth, width, rows), replayed on recorded trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.bench.bed import Bed
from aerie.bench.round.texts import write_texts
from aerie.costs.table import CostTable, Prices
from aerie.kernels.registry import Kernels
from aerie.speculation.policy import FixedTree, Gain, Growth, Situation, TreeShape, Widths
from aerie.speculation.preview import Preview
from aerie.speculation.tree import DraftTree

WIDTHS = (1, 2, 4, 8)
MOST_NODES = 64
DEPTH_PAYS, WIDTH_PAYS, ROW_PAYS = 4.0, 3.0, 2.5  # tokens per plain step, each by what it adds


class Cast(FixedTree):
    """Thresholds on gain over cost; it always drafts at least one layer."""

    reason = "policy cast drafts at least one layer in every round"
    widths: Widths | None = None  # asked after every layer
    shapes: tuple[Widths | None, ...] = ()  # nothing is recorded
    preview: Preview | None = None

    def __init__(self, shape: TreeShape, costs: CostTable) -> None:
        super().__init__(shape)
        self._costs = costs
        self._batch = 0
        self._prices: Prices | None = None

    def open(self, situation: Situation) -> Growth | None:
        """Look the costs up."""
        self._batch = situation.batch
        if not situation.batch:
            return None
        n_rows = situation.batch * self.shape.verify
        self._prices = self._costs.prices(
            situation.batch, situation.context, n_rows, self.shape.top_k
        )
        return self

    def next_width(self, depth: int, gain: Gain) -> int:
        """The widest frontier whose last node pays, if the level as a whole pays."""
        assert self._prices is not None, "asked for a width before the round was opened"
        if depth >= self.shape.depth:
            return 0
        gained = self._batch * np.asarray(torch.as_tensor(gain()).cpu(), dtype=np.float64)
        steps = self._prices.draft / self._prices.plain
        values = gained - WIDTH_PAYS * steps
        values[0] = -np.inf
        width = int(values.argmax())
        return width if gained[width] >= DEPTH_PAYS * steps[width] else 0

    def select(
        self, kernels: Kernels, tree: DraftTree, selected_out: Tensor, count_out: Tensor
    ) -> None:
        """The same number of nodes for every request: the last that pays on average."""
        assert self._prices is not None, "asked to select before the round was opened"
        ordered = torch.sort(tree.scores, dim=1, descending=True).values.double().sum(0)
        most = min(self.shape.verify, tree.n_nodes)
        mass = ordered[:most].cumsum(0).cpu().numpy()
        rows = self._batch * np.arange(1, most + 1)
        steps = self._prices.verify[rows] / self._prices.plain
        kernels["choose_best_nodes"](
            cumu_scores=tree.scores,
            verify_num=1 + int((mass - ROW_PAYS * steps).argmax()),
            selected=selected_out,
            n_chosen=count_out,
        )


@dataclass(frozen=True, eq=False)
class Recorded:
    """The tree drafted at one position, and the tokens that really followed."""

    tokens: NDArray[np.int64]
    scores: NDArray[np.float32]
    depths: NDArray[np.int64]
    parents: NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """A fixed plan and what it would have brought."""

    depth: int
    width: int
    rows: int
    tokens_per_round: float
    tokens_per_second: float


@dataclass(frozen=True, eq=False)
class Recording(FixedTree):
    """A policy that drafts the largest tree at every position and verifies the root alone."""

    trees: list[list[Recorded]] = field(default_factory=list)

    def select(
        self, kernels: Kernels, tree: DraftTree, selected_out: Tensor, count_out: Tensor
    ) -> None:
        """Keep the trees, verify the roots."""
        parts = (tree.tokens, tree.scores, tree.depths, tree.parents)
        arrays = [part.numpy().copy() for part in parts]
        self.trees.append([Recorded(*(a[b] for a in arrays)) for b in range(len(arrays[0]))])
        selected_out.zero_()
        selected_out[:, 0] = True
        count_out.fill_(1)


@dataclass(frozen=True, eq=False)
class Text:
    """A continuation with the tree drafted before each of its tokens."""

    tokens: tuple[int, ...]
    trees: tuple[Recorded, ...]  # trees[i] was drafted on the root before tokens[i]


def record(
    bed: Bed, prompts: Sequence[Sequence[int]], n_tokens: int, shape: TreeShape
) -> list[Text]:
    """Decode one token a round and keep every tree on the way."""
    policy = Recording(shape)
    bed.use(policy)
    texts = []
    for prompt in prompts:
        policy.trees.clear()
        (output,) = write_texts(bed.core, [prompt], n_tokens, 0.0)
        trees = [batch[0] for batch in policy.trees if batch]
        texts.append(Text(tuple(output), tuple(trees[-len(output) :])))
    return texts


def accept_lengths(text: Text, depth: int, width: int) -> NDArray[np.int64]:
    """Accepted tokens at every position if the best n nodes had been verified. [positions, n]"""
    found = np.zeros((len(text.tokens), MOST_NODES), np.int64)
    for place, tree in enumerate(text.trees):
        order = _narrowed(tree, depth, width)
        rank = {int(node): index for index, node in enumerate(order)}
        node = 0
        for step, token in enumerate(text.tokens[place : place + depth]):
            below = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
            kept = [int(child) for child in below if int(child) in rank]
            if not kept:
                break
            node = kept[0]
            # Verifying n nodes, root included, reaches it when n exceeds its rank.
            found[place, rank[node] :] = step + 1
    return found


def _narrowed(tree: Recorded, depth: int, width: int) -> NDArray[np.int64]:
    """Nodes a narrower, shallower draft would have made, best first, the root before all."""
    alive = np.zeros(len(tree.tokens), bool)
    alive[0] = True
    frontier = np.array([0])
    for level in range(1, depth + 1):
        children = np.flatnonzero((tree.depths == level) & np.isin(tree.parents, frontier))
        children = children[tree.scores[children] > 0]
        alive[children] = True
        best = np.argsort(-tree.scores[children], kind="stable")[:width]
        frontier = children[best]
    nodes = np.flatnonzero(alive)
    keys = np.where(nodes == 0, np.inf, tree.scores[nodes])
    return nodes[np.argsort(-keys, kind="stable")][:MOST_NODES]


def best_choice(
    texts: Sequence[Text], costs: CostTable, situation: Situation, depth: int
) -> Choice:
    """The best fixed plan for one batch size and context; depth 0 is plain decoding."""
    batch = situation.batch
    prices = costs.prices(batch, situation.context, batch * MOST_NODES, max(WIDTHS))
    best = Choice(0, 0, 1, 1.0, batch / prices.plain)
    for levels in range(1, depth + 1):
        for width in WIDTHS if levels > 1 else (1,):
            lengths = [accept_lengths(text, levels, width) for text in texts]
            spent = prices.extend + (levels - 1) * prices.draft[width]
            for rows in range(2, MOST_NODES + 1):
                mean = _tokens_per_round([a[:, rows - 1] for a in lengths])
                rate = batch * mean / (spent + prices.verify[batch * rows])
                if rate > best.tokens_per_second:
                    best = Choice(levels, width, rows, mean, float(rate))
    return best


def _tokens_per_round(accepted: Iterable[NDArray[np.int64]]) -> float:
    """Walk every text from its first token, jumping over what each round accepts."""
    tokens = rounds = 0
    for lengths in accepted:
        place = 0
        while place < len(lengths):
            rounds += 1
            place += int(lengths[place]) + 1
        tokens += len(lengths)
    return tokens / max(rounds, 1)
