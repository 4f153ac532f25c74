"""The small steps of a captured round by the names its code uses: callers of kernels R1 to R12."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.kernels.registry import Kernels
from aerie.kernels.report import REPORT as REPORT
from aerie.speculation.tree import DraftTree


@dataclass(frozen=True, eq=False)
class Verified:
    """What the kernels of a verification returned, by the names of their cards."""

    layout: Any  # K10c
    sampled: Any
    walked: Any  # K6
    committed: Any  # K7


@dataclass(frozen=True, eq=False)
class Standing:
    """The buffers a verdict changes, one row per slot."""

    is_live: Tensor  # [B] bool
    seq_len: Tensor  # [B] i64
    node_tokens: Tensor  # [B, N] i64, the root is the first
    node_scores: Tensor  # [B, N] f32
    tokens: Tensor  # [B, n] i64, emitted
    count: Tensor  # [B] i64, rows the draft takes in
    report: Tensor  # [B, REPORT and n] i32


@dataclass(frozen=True, eq=False)
class Offer:
    """Which forests may be verified, and what a planner's choice among them is made by."""

    sizes: Tensor  # [S] i64, rows in all, ascending
    numbers: Tensor  # [1 + S + corrections] f64: rate, seconds of each size, calibration, flat
    verify: int  # rows of one request, at most


@dataclass(frozen=True, eq=False)
class LevelPlace:
    """Where the rows of one draft level stand, read and write."""

    positions: Tensor  # [B * W] i64
    kv_slots: Tensor  # [B * W] i64
    visible_prefix: Tensor  # [B * W] i32


@dataclass(frozen=True, eq=False)
class DraftPlaces:
    """All that follows from lengths and counts alone: once a draft, for extend and all levels."""

    positions: Tensor  # [B * n] i64 of the accepted rows, the last one's for inert ones
    kv_slots: Tensor  # [B * n] i64, the inert slot for inert ones
    visible_prefix: Tensor  # [B * n] i32
    last: Tensor  # [B] i64, flat row a request's draft starts from
    levels: tuple[LevelPlace, ...]
    column_positions: Tensor  # [capacity] i32
    kv_indices: Tensor  # [capacity] i32, as K8 wrote it but 0 behind the last list
    tree_start: Tensor  # [B] i32


@dataclass(frozen=True, eq=False)
class RoundOps:
    """The steps of a round on one backend's kernels."""

    kernels: Kernels

    def verify_arrays(
        self,
        tokens: Tensor,
        positions: Tensor,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        seq_len: Tensor,
    ) -> dict[str, Tensor]:
        """Arrays of `Rows` by name for trees as K10c and K8 emit them, in buffers of a bucket."""
        placed = self.kernels["place_verify_rows"](
            draft_tokens=tokens,
            positions=positions,
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            seq_len=seq_len,
        )
        return {
            "tokens": placed.tokens,
            "kv_slots": placed.kv_slots,
            "visible_prefix": placed.visible_prefix,
            "qo_indptr": placed.row_indptr,
            "kv_indptr": placed.column_indptr,
            "kv_indices": kv_indices,
            "column_positions": placed.column_positions,
            "tree_start": placed.tree_start,
        }

    def hand_over(self, found: Verified, standing: Standing) -> Tensor:
        """Write lengths, roots, emitted tokens and the report; the kept rows [B, n] i64."""
        committed = found.committed
        kept: Tensor = self.kernels["hand_over_verdict"](
            layout_status=found.layout.status,
            sample_status=found.sampled.status,
            walk_status=found.walked.status,
            commit_status=committed.status,
            out_tokens=committed.out_tokens,
            out_indptr=committed.out_indptr,
            new_seq_len=committed.new_seq_len,
            finished=committed.finished,
            qo_indptr=found.layout.qo_indptr,
            accept_index=found.walked.accept_index,
            accept_count=found.walked.accept_count,
            is_live=standing.is_live,
            seq_len=standing.seq_len,
            cumu_tokens=standing.node_tokens,
            cumu_scores=standing.node_scores,
            accepted_tokens=standing.tokens,
            accepted_count=standing.count,
            report=standing.report,
        ).kept_rows
        return kept

    def move_slots(self, keys: Tensor, values: Tensor, source: Tensor, destination: Tensor) -> None:
        """K7's moves in every layer of a pool."""
        self.kernels["move_kv_slots"](keys=keys, values=values, kv_src=source, kv_dst=destination)

    def choose_best(
        self, scores: Tensor, n_nodes: int, chosen_out: Tensor, count_out: Tensor
    ) -> None:
        """The best nodes of each request: chosen [B, N] bool, and how many [B] i32."""
        self.kernels["choose_best_nodes"](
            cumu_scores=scores, selected=chosen_out, n_chosen=count_out, verify_num=n_nodes
        )

    def choose_planned(
        self,
        tree: DraftTree,
        widths: tuple[int, ...],
        offer: Offer,
        chosen_out: Tensor,
        count_out: Tensor,
    ) -> None:
        """The forest that is worth most at the offer's rate; `widths` each level fed."""
        self.kernels["choose_planned_nodes"](
            cumu_scores=tree.scores,
            cumu_deltas=tree.depths,
            prev_indexs=tree.parents,
            row_sizes=offer.sizes,
            numbers=offer.numbers,
            selected=chosen_out,
            n_chosen=count_out,
            deepest=len(widths) + 1,
            verify_num=offer.verify,
        )

    def note_chosen(self, tree: DraftTree, chosen: Tensor, sent_out: Tensor) -> None:
        """Scores and then depths of the chosen nodes in row order: sent [B, 2 M] f32."""
        size, device = (chosen.shape[0], sent_out.shape[1] // 2), sent_out.device
        scores = torch.empty(size, device=device)
        depths, tokens, parents = (
            torch.empty(size, dtype=torch.int32, device=device) for _ in range(3)
        )
        self.kernels["note_chosen_nodes"](
            cumu_scores=tree.scores,
            cumu_deltas=tree.depths,
            cumu_tokens=tree.tokens,
            prev_indexs=tree.parents,
            selected=chosen,
            noted_scores=scores,
            noted_depths=depths,
            noted_tokens=tokens,
            noted_parents=parents,
        )
        sent_out.copy_(torch.cat((scores, depths.float()), dim=1))

    def draft_places(
        self,
        seq_len: Tensor,
        accepted: tuple[Tensor, int],
        place: tuple[Tensor, Tensor],
        lists: tuple[Tensor, Tensor],
        levels: tuple[Tensor, Tensor],
        widths: tuple[int, ...],
    ) -> DraftPlaces:
        """`accepted`: rows to take in [B] i64 and their bound; `place`: the table, rows of it.

        `lists` is what K8 returned; the first of `levels` is the level of each node to be fed.
        """
        (table, table_row), (kv_indptr, kv_indices) = place, lists
        taken = self.kernels["place_draft_rows"](
            seq_len=seq_len,
            count=accepted[0],
            req_to_token=table,
            req_pool_indices=table_row,
            run=accepted[1],
        )
        fed = self.kernels["place_draft_levels"](
            seq_len=seq_len,
            req_to_token=table,
            req_pool_indices=table_row,
            node_level=levels[0],
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
        )
        rows = [width * seq_len.shape[0] for width in widths]
        parts = (fed.fed_positions, fed.fed_slots, fed.fed_visible)
        split = [part.split(rows) for part in parts] if widths else []
        return DraftPlaces(
            positions=taken.positions,
            kv_slots=taken.kv_slots,
            visible_prefix=taken.visible_prefix,
            last=taken.last,
            levels=tuple(LevelPlace(*level) for level in zip(*split, strict=True)),
            column_positions=fed.column_positions,
            kv_indices=kv_indices,
            tree_start=taken.tree_start,
        )

    def next_bits(self, bits: Tensor, ids: Tensor, children: tuple[int, int], fed: int) -> Tensor:
        """Bits of the nodes about to be fed; `children`: first id of their layer, how many each."""
        made: Tensor = self.kernels["mark_draft_paths"](
            frontier_bits=bits,
            node_ids=ids,
            first_id=children[0],
            top_k=children[1],
            fed_count=fed,
        ).node_bits
        return made
