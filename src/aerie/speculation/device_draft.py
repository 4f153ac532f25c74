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

import torch
from torch import Tensor

from aerie.attention.bucket_rows import Columns, EqualRows, bucket_columns
from aerie.attention.pool import KVPool
from aerie.attention.rows import Bounds
from aerie.kernels.registry import Kernels
from aerie.speculation.device_store import Frontier, NodeStore, Template
from aerie.speculation.eagle3 import DraftHead
from aerie.speculation.policy import TreeShape

# From logits [rows, draft vocab]: probability over the whole draft vocabulary and target id of the
# best k children of every row.
BestChildren = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def softmax_then_topk(head: DraftHead) -> BestChildren:
    """The definition of BestChildren."""

    def best_children(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best = torch.softmax(logits, dim=-1).topk(k, dim=-1)
        return best.values, head.to_target(best.indices)

    return best_children


@dataclass(frozen=True, eq=False)
class Accepted:
    """What verifying hands to drafting: each request's kept rows, their features and next tokens.

    Row i of request b stands at position `seq_len[b] - count[b] + i`. A request that failed or
    ended has count 0.
    """

    tokens: Tensor  # [B, n] i64, the token after each row
    taps: Tensor  # [B, n, captures, hidden]
    count: Tensor  # [B] i64


@dataclass(frozen=True, eq=False)
class Place:
    """Where the requests of a bucket keep their KV."""

    table: Tensor  # [rows, positions] i32, the request-to-slot table
    table_row: Tensor  # [B] i64
    seq_len: Tensor  # [B] i64, committed tokens, root excluded
    longest: int  # bound on seq_len and everything a draft feeds

    def slots(self, positions: Tensor) -> Tensor:
        """Slots of positions [B, n] i64. [B, n] i64"""
        last = self.table.shape[1] - 1
        return self.table[self.table_row[:, None], positions.clamp_max(last)].long()


@dataclass(frozen=True, eq=False)
class DeviceDraft:
    """A draft head that grows trees in a NodeStore."""

    head: DraftHead
    pool: KVPool
    kernels: Kernels
    best_children: BestChildren

    def run(self, template: Template, store: NodeStore, accepted: Accepted, place: Place) -> None:
        """Take in the accepted rows, then grow a tree below every root."""
        columns = self._columns(template, place)
        # Nodes of one level share a position; inside the prefix it is the column's index.
        start = place.seq_len[columns.owner.clamp_max(place.seq_len.shape[0] - 1)]
        positions = columns.index
        if template.fed:
            node = columns.index - start
            level = template.levels[node.clamp(0, template.fed - 1)]
            positions = torch.where(node >= 0, start + level, columns.index)
        lists = _Lists(columns, positions.int(), place)
        out = self._extend(accepted, lists)
        is_known = accepted.count > 0
        self._grow(template, store, lists, _Roots(out.hidden, out.logits, is_known))

    def _columns(self, template: Template, place: Place) -> Columns:
        """One list per request for the whole draft: the prefix and every node that will be fed."""
        found = self.kernels["compute_kv_indices"](
            req_to_token=place.table,
            req_pool_indices=place.table_row,
            # At least one, so that an inert request has a column to look at.
            seq_len=place.seq_len + max(template.fed, 1),
            kv_capacity=place.seq_len.shape[0] * place.longest + 1,
        )
        return bucket_columns(found.kv_indptr, found.kv_indices)

    def _extend(self, accepted: Accepted, lists: _Lists) -> Any:
        """Rebuild the draft's KV of the accepted rows from the target's own features."""
        batch, n_rows = accepted.tokens.shape
        device = accepted.tokens.device
        own = torch.arange(n_rows, device=device)
        place = lists.place
        is_real = own < accepted.count[:, None]
        positions = ((place.seq_len - accepted.count)[:, None] + own) * is_real
        rows = EqualRows(
            tokens=accepted.tokens,
            positions=positions,
            kv_slots=place.slots(positions) * is_real,
            visible_prefix=positions + 1,
        )
        first = torch.arange(0, batch * n_rows, n_rows, device=device)
        last = first + (accepted.count - 1).clamp_min(0)
        bounds = Bounds(n_rows, place.longest)
        flat = rows.rows(lists.columns, place.seq_len, lists.positions, bounds)
        return self.head.extend(flat, accepted.taps.flatten(0, 1), self.pool, last)

    def _grow(self, template: Template, store: NodeStore, lists: _Lists, roots: _Roots) -> None:
        """Layer by layer: score and sort (K1), store (K2), feed the best on."""
        batch, top_k = roots.is_known.shape[0], template.shape.top_k
        place = lists.place
        probas, tokens = self.best_children(roots.logits, top_k)
        probas = probas * roots.is_known[:, None]
        frontier = Frontier.root(roots.hidden, template.shape)
        fed_slots = lists.fed_slots(template.fed).split(template.widths, dim=1)
        count = 1
        for depth in range(len(template.widths) + 1):
            layer, state = self._layer(template.shape, store, frontier, (probas, tokens), count)
            count += layer.curr_layer_scores.shape[1]
            if depth == len(template.widths):
                return
            width = template.widths[depth]
            frontier = frontier.next(layer, state, template.own_bits[depth])
            rows = EqualRows(
                tokens=frontier.tokens,
                positions=(place.seq_len + depth)[:, None].expand(batch, width),
                kv_slots=fed_slots[depth],
                visible_prefix=place.seq_len[:, None].expand(batch, width),
                ancestor_bits=frontier.bits,
            )
            bounds = Bounds(width, place.longest, template.fed)
            flat = rows.rows(lists.columns, place.seq_len, lists.positions, bounds)
            out = self.head.step(flat, frontier.hidden, self.pool)
            frontier.hidden = out.hidden
            probas, tokens = self.best_children(out.logits, top_k)

    def _layer(
        self,
        shape: TreeShape,
        store: NodeStore,
        frontier: Frontier,
        children: tuple[Tensor, Tensor],
        count: int,
    ) -> tuple[Any, Any]:
        batch = frontier.ids.shape[0]
        layer = self.kernels["draft_tree_layer_score_index_gen_op"](
            topk_probas=children[0].reshape(batch, -1),
            topk_tokens=children[1].reshape(batch, -1),
            last_layer_scores=frontier.scores,
            input_hidden=frontier.hidden,
            cumu_count=count,
        )
        state = self.kernels["update_cumu_draft_state"](
            **store.arrays,
            sort_scores=store.sort_scores,
            curr_layer_scores=layer.curr_layer_scores,
            topk_tokens=layer.mapped_tokens,
            sort_layer_scores=layer.sort_layer_scores,
            sort_layer_indices=layer.sort_layer_indices,
            frontier_indexs=frontier.ids,
            input_tree_mask=frontier.mask,
            cumu_count=count,
            verify_num=min(shape.verify, store.sort_scores.shape[1]),
            fed_count=frontier.fed,
        )
        return layer, state


@dataclass(frozen=True, eq=False)
class _Roots:
    hidden: Tensor  # [B, hidden]
    logits: Tensor  # [B, draft vocab] f32
    is_known: Tensor  # [B] bool


@dataclass(frozen=True, eq=False)
class _Lists:
    """Slot lists of a draft with the positions of their columns."""

    columns: Columns
    positions: Tensor  # [capacity] i32
    place: Place

    def fed_slots(self, n_fed: int) -> Tensor:
        """Slots behind the sequence that the fed nodes write. [B, n_fed] i64"""
        offset = torch.arange(n_fed, device=self.positions.device)
        return self.place.slots(self.place.seq_len[:, None] + offset)
