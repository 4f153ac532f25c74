"""Drafting: take in what was accepted, then grow a tree level by level (K1, K2, K3).

Every array has a shape that follows from the bucket, so that a whole draft can be captured in one
graph; where the host knows lengths and counts, the shapes fit exactly instead. What a request does
not use is inert: rows beyond its accepted run write the inert slot, and a request without fresh
features gets nodes of score 0, which are never chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.attention.rows import MASK_WORDS, Bounds, Rows, causal_rows, ragged
from aerie.kernels.registry import Kernels
from aerie.speculation.head import DraftHead, DraftOutput
from aerie.speculation.hot import HotIds
from aerie.speculation.policy import Growth, TreeShape, Widths
from aerie.speculation.store import (
    Accepted,
    Frontier,
    Missed,
    NodeStore,
    Place,
    SlotLists,
    even_ends,
    list_slots,
)


class Allow(Protocol):
    """Masks of grammars: told the nodes before the head's pass, asked for their masks after it."""

    def send(self, nodes: Tensor) -> None:
        """Nodes [B, W] i64, stored before, that are about to be fed."""

    def masked(self, nodes: Tensor, logits: Tensor) -> Tensor:
        """The draft's logits [B * W, draft vocab] after them, without what may not follow."""


@dataclass(frozen=True, eq=False)
class Drafted:
    """What a draft left in the store."""

    n_nodes: int  # per request
    widths: tuple[int, ...]  # nodes fed at each level
    gains: tuple[Tensor, ...]  # K3's G [K+1] of each layer, where a policy learns from it


@dataclass(frozen=True, eq=False)
class Draft:
    """A draft head that grows trees in a NodeStore."""

    head: DraftHead
    pool: KVPool
    kernels: Kernels
    shape: TreeShape
    is_fused: bool = False  # a layer is one launch: K1, K2 and K3 together
    weighs: bool = False  # every layer's gains are kept, for a policy that learns from them
    allow: Allow | None = None
    hot: HotIds | None = None  # ids of the prompts; None: the head's own vocabulary for all

    @torch.inference_mode()
    def run(self, growth: Growth, store: NodeStore, accepted: Accepted, place: Place) -> Drafted:
        """Take in the accepted rows, then grow a tree below every root."""
        known = growth.widths
        lists = list_slots(self.kernels, place, known or ())
        if self.allow is not None:
            self.allow.send(torch.zeros_like(accepted.count)[:, None])
        out = self._extend(accepted, place, lists)
        is_known = (accepted.count > 0) & accepted.takes_drafts
        frontier = Frontier.root(out.hidden, self.shape.fed + self.shape.top_k)
        children = self._best(out, frontier.ids)
        children = (children[0] * is_known[:, None], children[1])
        verify = min(self.shape.verify, store.sort_scores.shape[1])
        rotations = self._rotations(lists, known)
        count, gains = 1, []
        widths: Widths = ()
        for depth in range(1, self.shape.depth + 1):
            numbers = {"cumu_count": count, "verify_num": verify, "fed_count": sum(widths)}
            grown = self._grow(store, frontier, children, numbers)
            if self.weighs:
                gains.append(grown.gain())
            width = growth.next_width(depth, grown.gain)
            if not width:
                count += children[0].shape[1]
                break
            frontier = self._fed(frontier, grown, width, count, sum(widths))
            if self.allow is not None:
                self.allow.send(frontier.ids)
            count += children[0].shape[1]
            widths = (*widths, width)
            if known is None:
                lists = list_slots(self.kernels, place, widths)
            rows = self._level_rows(frontier, place, lists, widths, known)
            rotation = rotations[depth - 1] if rotations else None
            out = self.head.step(rows, frontier.hidden, self.pool, rotation=rotation)
            frontier = replace(frontier, hidden=out.hidden)
            children = self._best(out, frontier.ids)
        return Drafted(count, widths, tuple(gains))

    @torch.inference_mode()
    def show(self, accepted: Accepted, place: Place) -> None:
        """Take in accepted rows and draft nothing: what ends here may be read again."""
        self._extend(accepted, place, list_slots(self.kernels, place, ()))

    @torch.inference_mode()
    def catch_up(self, missed: Sequence[Missed]) -> None:
        """Take in features of rounds that drafted nothing."""
        taps, ends = ragged([part.taps for part in missed])
        kv_indices, kv_indptr = ragged([part.slots for part in missed])
        tokens = torch.cat([part.tokens for part in missed])
        most = max(part.tokens.shape[0] for part in missed)
        bounds = Bounds(most, max(part.slots.shape[0] for part in missed))
        rows = causal_rows(tokens, ends, kv_indptr, kv_indices, bounds)
        self.head.extend(rows, taps, self.pool, tokens.new_empty(0))

    def _extend(self, accepted: Accepted, place: Place, lists: SlotLists) -> DraftOutput:
        """Rebuild the draft's KV of the accepted rows from the target's own features."""
        batch, run = accepted.tokens.shape
        counts = accepted.counts
        run = run if counts is None else max(counts, default=1) or 1
        placed = self.kernels["place_draft_rows"](
            seq_len=place.seq_len,
            count=accepted.count,
            req_to_token=place.table,
            req_pool_indices=place.table_row,
            run=run,
        )
        tokens, taps = accepted.tokens[:, :run].flatten(), accepted.taps[:, :run].flatten(0, 1)
        device = tokens.device
        arrays: tuple[Tensor, ...] = (tokens, placed.positions, placed.kv_slots)
        arrays += placed.visible_prefix, taps
        ends = even_ends(batch, run, device)
        last = placed.last
        if counts is not None and any(counts) and any(count != run for count in counts):
            # The host knows which request has how many: only real rows are computed.
            kept = [b * run + i for b, count in enumerate(counts) for i in range(count)]
            index = torch.tensor(kept, dtype=torch.int64, device=device)
            arrays = tuple(array[index] for array in arrays)
            ends = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
            last = (ends[1:].long() - 1).clamp_min(0)
        tokens, positions, slots, visible, taps = arrays
        rows = Rows(
            tokens=tokens,
            positions=positions,
            kv_slots=slots,
            visible_prefix=visible,
            ancestor_bits=ends.new_zeros((tokens.shape[0], MASK_WORDS)),
            qo_indptr=ends,
            kv_indptr=lists.kv_indptr,
            kv_indices=lists.kv_indices,
            column_positions=lists.column_positions,
            tree_start=placed.tree_start,
            bounds=Bounds(run, place.columns(1)),
        )
        return self.head.extend(rows, taps, self.pool, last)

    def token_map(self, batch: int) -> Tensor | None:
        """Target ids of draft ids [draft vocab] i64, or of every seat's own; None: the same."""
        return self.head.token_map if self.hot is None else self.hot.token_map[:batch]

    def _best(self, out: DraftOutput, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Probability over the whole draft vocabulary and target id of every node's children."""
        logits, (batch, _), hot = out.logits, nodes.shape, self.hot
        logits = logits if hot is None else hot.logits(logits, out.normed, batch)
        logits = self.allow.masked(nodes, logits) if self.allow else logits
        ids = self.token_map(batch)
        mapped = {} if ids is None or hot is not None else {"hot_token_id": ids}
        found = self.kernels["best_draft_children"](
            logits=logits, node_top_k=self.shape.top_k, **mapped
        )
        tokens = found.topk_tokens.reshape(batch, -1)
        tokens = tokens if hot is None else hot.token_map[:batch].gather(1, tokens)
        return found.topk_probas.reshape(batch, -1), tokens

    def _grow(
        self,
        store: NodeStore,
        frontier: Frontier,
        children: tuple[Tensor, Tensor],
        numbers: dict[str, int],
    ) -> Grown:
        """Score, sort, store and weigh one layer."""
        if self.is_fused:
            found = self.kernels["grow_draft_layer"](
                **store.arrays,
                sort_scores=store.sort_scores,
                topk_probas=children[0],
                topk_tokens=children[1],
                last_layer_scores=frontier.scores,
                input_hidden=frontier.hidden,
                frontier_indexs=frontier.ids,
                input_tree_mask=frontier.mask,
                weigh=self.weighs,
                **numbers,
            )
            return Grown(found.node_ids, found, found.output_hidden, lambda: found.G)
        layer = self.kernels["draft_tree_layer_score_index_gen_op"](
            topk_probas=children[0],
            topk_tokens=children[1],
            last_layer_scores=frontier.scores,
            input_hidden=frontier.hidden,
            cumu_count=numbers["cumu_count"],
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
            **numbers,
        )
        weigh = partial(
            self.kernels["calculate_work_deltas"],
            work_scores=state.work_scores,
            node_top_k=self.shape.top_k,
            verify_num=numbers["verify_num"],
        )
        return Grown(layer.cache_topk_indices, state, layer.output_hidden, lambda: weigh().G)

    def _fed(
        self, frontier: Frontier, grown: Grown, width: int, first_id: int, n_fed: int
    ) -> Frontier:
        """The best children of a layer become the frontier."""
        ids, hidden = grown.ids[:, :width], grown.hidden[:, :width]
        bits = self.kernels["mark_draft_paths"](
            frontier_bits=frontier.bits,
            node_ids=ids,
            first_id=first_id,
            top_k=self.shape.top_k,
            fed_count=n_fed,
        )
        return Frontier(
            ids=ids,
            scores=grown.state.output_scores[:, :width],
            # -1 where a request was refused: any token will do for rows that are not verified.
            tokens=grown.state.output_tokens[:, :width].clamp_min(0),
            hidden=hidden.reshape(-1, hidden.shape[-1]),
            mask=grown.state.output_tree_mask[:, :width],
            bits=bits.node_bits,
        )

    def _level_rows(
        self,
        frontier: Frontier,
        place: Place,
        lists: SlotLists,
        widths: tuple[int, ...],
        known: tuple[int, ...] | None,
    ) -> Rows:
        """One level: every frontier node sees its text, its fed ancestors and itself."""
        batch, width = frontier.ids.shape
        before = batch * (sum(widths) - width)
        span = slice(before, before + batch * width)
        fed = sum(known if known is not None else widths)
        device = frontier.ids.device
        return Rows(
            tokens=frontier.tokens.reshape(-1),
            positions=lists.positions[span],
            kv_slots=lists.slots[span],
            visible_prefix=lists.visible[span],
            ancestor_bits=frontier.bits.flatten(0, 1),
            qo_indptr=even_ends(batch, width, device),
            kv_indptr=lists.kv_indptr,
            kv_indices=lists.kv_indices,
            column_positions=lists.column_positions,
            tree_start=lists.tree_start,
            bounds=Bounds(width, place.columns(fed), fed),
        )

    def _rotations(self, lists: SlotLists, known: tuple[int, ...] | None) -> Sequence[Any]:
        """Of all levels together, where they are known: five small launches a level less."""
        if not known:
            return ()
        batch = lists.kv_indptr.shape[0] - 1
        return self.head.rotations(lists.positions.split([batch * width for width in known]))


@dataclass(frozen=True, eq=False)
class Grown:
    """A layer that was stored: its best children, and what verifying them would add."""

    ids: Tensor  # [B, K] i64
    state: Any  # output_scores, output_tokens and output_tree_mask of K2's card
    hidden: Tensor  # [B, K, hidden]
    gain: Any  # () -> K3's G [K+1] f32, computed when asked
