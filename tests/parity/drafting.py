"""Drives K1, K2 and K3 over the layers of a batch, beside trees grown by the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from tests.oracles.growth import GrownTree
from tests.parity.backend import run

ROOT_TOKEN = 900_000


@dataclass(frozen=True)
class Shape:
    """Width of every layer's frontier; the first is 1, later ones at most `top_k`."""

    top_k: int
    widths: tuple[int, ...]
    verify_num: int
    batch: int = 1
    compat: bool = False
    fed_root: bool = True

    @property
    def n_nodes(self) -> int:
        return 1 + sum(width * self.top_k for width in self.widths)


@dataclass(frozen=True)
class Proposal:
    """Candidates of one layer, [B, W*K] each; siblings never share a token."""

    probas: np.ndarray
    tokens: np.ndarray


def propose(
    generator: np.random.Generator, shape: Shape, width: int, grain: int | None = None
) -> Proposal:
    """Random candidates; `grain` rounds probabilities to 1/grain, which makes many ties."""
    size = (shape.batch, width, shape.top_k)
    drawn = generator.dirichlet(np.ones(shape.top_k + 1), size=size[:2])[..., :-1]
    drawn = -np.sort(-drawn, axis=-1)
    if grain:
        drawn = np.floor(drawn * grain) / grain
    tokens = np.argsort(generator.random((*size[:2], 50)), axis=-1)[..., : shape.top_k]
    columns = (shape.batch, width * shape.top_k)
    return Proposal(
        drawn.reshape(columns).astype(np.float32), tokens.reshape(columns).astype(np.int64)
    )


class Drafted:
    """A batch drafted by a backend (`store`, masks, G) and by the oracle (`trees`) at once."""

    def __init__(self, backend: str, shape: Shape) -> None:
        self.backend, self.shape = backend, shape
        batch = shape.batch
        self.store = _empty_store(shape)
        self.trees = [GrownTree.with_root(ROOT_TOKEN) for _ in range(batch)]
        self.fed = [[0] if shape.fed_root else [] for _ in range(batch)]
        self.mask = np.zeros((batch, 1, 1 + shape.top_k * (len(shape.widths) + 1)), dtype=bool)
        self.mask[:, :, 0] = shape.fed_root
        self.frontier = np.zeros((batch, 1), dtype=np.int64)
        self.carried = np.ones((batch, 1), dtype=np.float32)
        self.count = 1

    def layer(self, proposal: Proposal, next_width: int) -> SimpleNamespace:
        """Run one layer; returns K1's, K2's and K3's results and the oracle's best ids."""
        shape, batch = self.shape, self.shape.batch
        width = self.frontier.shape[1]
        scored = run(
            self.backend,
            "draft_tree_layer_score_index_gen_op",
            topk_probas=proposal.probas,
            topk_tokens=proposal.tokens,
            last_layer_scores=self.carried,
            input_hidden=np.arange(batch * width, dtype=np.float32).reshape(-1, 1),
            cumu_count=self.count,
        )
        stored = run(
            self.backend,
            "update_cumu_draft_state",
            **self.store,
            curr_layer_scores=scored.curr_layer_scores,
            topk_tokens=scored.mapped_tokens,
            sort_layer_scores=scored.sort_layer_scores,
            sort_layer_indices=scored.sort_layer_indices,
            frontier_indexs=self.frontier,
            input_tree_mask=self.mask,
            cumu_count=self.count,
            verify_num=shape.verify_num,
            fed_count=len(self.fed[0]),
            compat=shape.compat,
        )
        gain = run(
            self.backend,
            "calculate_work_deltas",
            work_scores=stored.work_scores,
            node_top_k=shape.top_k,
            verify_num=shape.verify_num,
        )
        best = [
            tree.grow(proposal.probas[b].tolist(), proposal.tokens[b].tolist())[: shape.top_k]
            for b, tree in enumerate(self.trees)
        ]
        self._advance(scored, stored, best, next_width)
        return SimpleNamespace(scored=scored, stored=stored, G=gain.G, best=best)

    def _advance(
        self,
        scored: SimpleNamespace,
        stored: SimpleNamespace,
        best: Sequence[list[int]],
        next_width: int,
    ) -> None:
        self.count += scored.curr_layer_scores.shape[1]
        self.frontier = np.ascontiguousarray(scored.cache_topk_indices[:, :next_width])
        self.carried = np.ascontiguousarray(stored.output_scores[:, :next_width])
        self.mask = np.ascontiguousarray(stored.output_tree_mask[:, :next_width])
        for fed, tree, ids in zip(self.fed, self.trees, best, strict=True):
            tree.frontier = ids[:next_width]
            fed.extend(tree.frontier)


def _empty_store(shape: Shape) -> dict[str, np.ndarray]:
    batch, n_nodes = shape.batch, shape.n_nodes
    store = {
        name: np.full((batch, n_nodes), fill, dtype=np.int64)
        for name, fill in [("cumu_tokens", -7), ("cumu_deltas", 0), ("prev_indexs", -1)]
        + [("next_indexs", -1), ("side_indexs", -1)]
    }
    store["cumu_tokens"][:, 0] = ROOT_TOKEN
    store["cumu_scores"] = np.zeros((batch, n_nodes), dtype=np.float32)
    store["sort_scores"] = np.zeros((batch, shape.verify_num), dtype=np.float32)
    root = np.float32(1.001 if shape.compat else 1.0)
    store["cumu_scores"][:, 0] = store["sort_scores"][:, 0] = root
    return store


def draft(
    backend: str, shape: Shape, seed: int, grain: int | None = None
) -> tuple[Drafted, list[SimpleNamespace]]:
    """Draft every layer of `shape`; the results of each layer with the batch at the end."""
    generator = np.random.default_rng(seed)
    drafted = Drafted(backend, shape)
    layers = []
    for width, following in zip(shape.widths, [*shape.widths[1:], 1], strict=True):
        layers.append(drafted.layer(propose(generator, shape, width, grain), following))
    return drafted, layers
