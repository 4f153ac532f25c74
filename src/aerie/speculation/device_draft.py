"""Drafting on fixed buffers: extend, every level and the node store without one host read.

The same algorithm as the EAGLE-3 proposer's, on arrays whose shapes depend on nothing but the
bucket, so that a whole draft can be captured in one graph. What a request does not use is inert:
rows beyond its accepted run write the inert slot, and a request without fresh features gets nodes
of score 0, which are never chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.attention.rows import Bounds, Rows
from aerie.kernels.registry import Kernels
from aerie.speculation.device_store import Accepted, Frontier, Grown, NodeStore, Place, Template
from aerie.speculation.eagle3 import DraftHead
from aerie.speculation.round_ops import DraftPlaces, RoundOps

# From logits [rows, draft vocab]: probability over the whole draft vocabulary and target id of the
# best k children of every row.
BestChildren = Callable[[Tensor, int], tuple[Tensor, Tensor]]
Children = tuple[Tensor, Tensor]  # probabilities and tokens [B, W * K]


def best_by_kernels(kernels: Kernels, head: DraftHead) -> BestChildren:
    """BestChildren by R6."""

    def best_children(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best = kernels["best_draft_children"](
            logits=logits, node_top_k=k, hot_token_id=head.token_map
        )
        return best.topk_probas, best.topk_tokens

    return best_children


@dataclass(frozen=True)
class LayerCounts:
    """Host-side numbers of a layer: nodes stored and fed before it, and the verifier's bound."""

    cumu_count: int
    fed_count: int
    verify_num: int


GrowLayer = Callable[[NodeStore, Frontier, Children, LayerCounts], Grown]


def grow_by_kernels(kernels: Kernels, weighs: bool) -> GrowLayer:
    """GrowLayer by R7; weighed where somebody learns from it."""

    def grow(
        store: NodeStore, frontier: Frontier, children: Children, counts: LayerCounts
    ) -> Grown:
        layer = kernels["grow_draft_layer"](
            **store.arrays,
            sort_scores=store.sort_scores,
            topk_probas=children[0],
            topk_tokens=children[1],
            last_layer_scores=frontier.scores,
            input_hidden=frontier.hidden,
            frontier_indexs=frontier.ids,
            input_tree_mask=frontier.mask,
            cumu_count=counts.cumu_count,
            verify_num=counts.verify_num,
            fed_count=counts.fed_count,
            weigh=weighs,
        )
        return Grown(
            layer.node_ids,
            layer.output_scores,
            layer.output_tokens,
            layer.output_hidden,
            layer.output_tree_mask,
            layer.G if weighs else None,
        )

    return grow


@dataclass(frozen=True, eq=False)
class DeviceDraft:
    """A draft head that grows trees in a NodeStore."""

    head: DraftHead
    pool: KVPool
    kernels: Kernels
    ops: RoundOps
    best_children: BestChildren
    grow_layer: GrowLayer

    def run(
        self, template: Template, store: NodeStore, accepted: Accepted, place: Place
    ) -> list[Tensor | None]:
        """Take in the accepted rows, then grow a tree below every root; each layer's gains."""
        found = self.kernels["compute_kv_indices"](
            req_to_token=place.table,
            req_pool_indices=place.table_row,
            # At least one, so that an inert request has a column to look at.
            seq_len=place.seq_len + max(template.fed, 1),
            kv_capacity=place.seq_len.shape[0] * place.longest + 1,
        )
        places = self.ops.draft_places(
            place.seq_len,
            (accepted.count, accepted.tokens.shape[1]),
            (place.table, place.table_row),
            (found.kv_indptr, found.kv_indices),
            template.levels,
            template.widths,
        )
        lists = _Lists(places, found.kv_indptr, place.longest)
        out = self._extend(template, accepted, lists)
        roots = _Roots(out.hidden, out.logits, accepted.count > 0)
        return self._grow(template, store, lists, roots)

    def _extend(self, template: Template, accepted: Accepted, lists: _Lists) -> Any:
        """Rebuild the draft's KV of the accepted rows from the target's own features."""
        batch, n_rows = accepted.tokens.shape
        places = lists.places
        rows = Rows(
            tokens=accepted.tokens.view(-1),
            positions=places.positions,
            kv_slots=places.kv_slots,
            visible_prefix=places.visible_prefix,
            ancestor_bits=template.no_bits[: batch * n_rows],
            **lists.shared(template.starts[n_rows][: batch + 1]),
            bounds=Bounds(n_rows, lists.longest),
        )
        return self.head.extend(rows, accepted.taps.flatten(0, 1), self.pool, places.last)

    def _grow(
        self, template: Template, store: NodeStore, lists: _Lists, roots: _Roots
    ) -> list[Tensor | None]:
        """Layer by layer: score, sort and store, then feed the best on."""
        batch, top_k = roots.is_known.shape[0], template.shape.top_k
        probas, tokens = self.best_children(roots.logits, top_k)
        probas = probas * roots.is_known[:, None]
        frontier = Frontier.root(roots.hidden, template.shape)
        verify = min(template.shape.verify, store.sort_scores.shape[1])
        count, fed = 1, 0
        gains = []
        # Together: five small launches a level less, 7 of its 270 µs on an H200.
        rotations = self.head.rotations([level.positions for level in lists.places.levels])
        for depth in range(len(template.widths) + 1):
            children = probas.view(batch, -1), tokens.view(batch, -1)
            grown = self.grow_layer(store, frontier, children, LayerCounts(count, fed, verify))
            gains.append(grown.gains)
            if depth == len(template.widths):
                break
            width = template.widths[depth]
            bits = self.ops.next_bits(frontier.bits, grown.ids[:, :width], (count, top_k), fed)
            count += children[0].shape[1]
            fed += width
            frontier = frontier.next(grown, width, bits)
            level = lists.places.levels[depth]
            rows = Rows(
                tokens=frontier.tokens.view(-1),
                positions=level.positions,
                kv_slots=level.kv_slots,
                visible_prefix=level.visible_prefix,
                ancestor_bits=bits.flatten(0, 1),
                **lists.shared(template.starts[width][: batch + 1]),
                bounds=Bounds(width, lists.longest, template.fed),
            )
            out = self.head.step(rows, frontier.hidden, self.pool, rotation=rotations[depth])
            frontier.hidden = out.hidden
            probas, tokens = self.best_children(out.logits, top_k)
        return gains


@dataclass(frozen=True, eq=False)
class _Roots:
    hidden: Tensor  # [B, hidden]
    logits: Tensor  # [B, draft vocab]
    is_known: Tensor  # [B] bool


@dataclass(frozen=True, eq=False)
class _Lists:
    """What all rows of one draft share."""

    places: DraftPlaces
    kv_indptr: Tensor  # [B+1] i32
    longest: int

    def shared(self, qo_indptr: Tensor) -> dict[str, Any]:
        """Fields of `Rows`: one slot list per request for extend and every level."""
        return {
            "qo_indptr": qo_indptr,
            "kv_indptr": self.kv_indptr,
            "kv_indices": self.places.kv_indices,
            "column_positions": self.places.column_positions,
            "tree_start": self.places.tree_start,
        }
