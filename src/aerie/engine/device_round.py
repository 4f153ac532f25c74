"""One round on the device: verify the trees that wait, commit, draft the next ones.

Both halves are functions of the state's buffers and of fixed sizes, without a host read, so that a
graph can hold either. `verify` turns chosen nodes into committed tokens; `draft` turns what was
committed into the next chosen nodes. With nothing to draft with, `verify` alone is plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.attention.rows import Bounds, Rows
from aerie.config import MAX_VERIFY
from aerie.engine.device_state import DeviceState, Seats, leading
from aerie.kernels.registry import Kernels
from aerie.models.decoder import Decoder
from aerie.speculation.device_draft import DeviceDraft
from aerie.speculation.device_policy import RoundPolicy
from aerie.speculation.device_store import Place, Template
from aerie.speculation.round_ops import REPORT, RoundOps, Verified


@dataclass(frozen=True)
class Bucket:
    """The sizes a captured round is fixed to; a batch runs in the smallest that holds it."""

    slots: int  # requests
    rows: int = 0  # verified rows, all requests together
    columns: int = 0  # KV positions of one request, a round's own included
    is_sampled: bool = False  # some temperature is above zero
    tile: int = 0  # verified rows of one request that attention is tuned for

    def holds(self, other: Bucket) -> bool:
        """Whether a round that fits the other one fits this one: empty slots verify roots."""
        n_rows = other.rows + self.slots - other.slots
        return (
            self.slots >= other.slots
            and self.rows >= n_rows
            and self.columns >= other.columns
            and self.is_sampled >= other.is_sampled
        )

    def without_rows(self) -> Bucket:
        """What follows the verification depends neither on its rows nor on who sampled."""
        return Bucket(self.slots, columns=self.columns)


@dataclass(frozen=True, eq=False)
class RoundParts:
    """What a device round runs on."""

    target: Decoder
    pool: KVPool
    table: Tensor  # [requests, positions] i32
    kernels: Kernels
    state: DeviceState
    draft: DeviceDraft | None
    taps: tuple[int, ...]
    ops: RoundOps
    # Attention that leaves rows without an owner alone needs no request for a bucket's padding.
    has_inert_request: bool
    policy: RoundPolicy


def verify(parts: RoundParts, bucket: Bucket) -> None:
    """Lay out, run the target, follow its tokens, commit: all that a verdict decides."""
    state, n = parts.state, bucket.slots
    seats, seq_len, chosen = leading(state.seats, n), state.seq_len[:n], state.chosen[:n]
    tree = state.store.first(n).tree()
    layout = parts.kernels["update_node_data"](
        cumu_tokens=tree.tokens,
        cumu_deltas=tree.depths,
        prev_indexs=tree.parents,
        node_count=tree.node_count,
        selected=chosen,
        seq_len=seq_len,
        row_capacity=bucket.rows,
    )
    targets, taps = _target_tokens(parts, bucket, layout, seats, seq_len)
    depth = state.accepted.tokens.shape[1] - 1
    walked = parts.kernels["draft_tree_reject_sample"](
        qo_indptr=layout.qo_indptr,
        draft_tokens=layout.draft_tokens,
        first_child_row=layout.first_child_row,
        next_sibling_row=layout.next_sibling_row,
        target_tokens=targets.target_tokens,
        tree_depth=depth,
    )
    committed = parts.kernels["update_verify_result"](
        accept_index=walked.accept_index,
        accept_count=walked.accept_count,
        bonus_token=walked.bonus_token,
        draft_tokens=layout.draft_tokens,
        qo_indptr=layout.qo_indptr,
        seq_len=seq_len,
        length_limit=seats.length_limit,
        stop_tokens=seats.stop_tokens,
        req_to_token=parts.table,
        req_pool_indices=seats.table_row,
    )
    if depth:
        move = parts.ops.move_slots
        move(parts.pool.keys, parts.pool.values, committed.kv_src, committed.kv_dst)
    kept = parts.ops.hand_over(Verified(layout, targets, walked, committed), state.standing(n))
    if parts.draft is not None:
        state.accepted.taps[:n] = taps[kept]
    if state.lessons is not None:
        path = walked.accept_index.float()
        state.lessons.told[:n] = torch.cat((state.lessons.sent[:n], path), dim=1)


def _target_tokens(
    parts: RoundParts, bucket: Bucket, layout: Any, seats: Seats, seq_len: Tensor
) -> tuple[Any, Tensor]:
    """The target's own token at every row, and the features of all rows."""
    counts = layout.qo_indptr.diff().long()
    lists = parts.kernels["compute_kv_indices"](
        req_to_token=parts.table,
        req_pool_indices=seats.table_row,
        seq_len=seq_len + counts,
        kv_capacity=bucket.slots * bucket.columns + 1,
    )
    arrays = parts.ops.verify_arrays(
        layout.draft_tokens,
        layout.positions,
        layout.qo_indptr,
        lists.kv_indptr,
        lists.kv_indices,
        seq_len,
    )
    if not parts.has_inert_request:
        for name in ("qo_indptr", "kv_indptr", "tree_start"):
            arrays[name] = arrays[name][:-1]
    rows = Rows(
        **arrays,
        positions=layout.positions,
        ancestor_bits=layout.ancestor_bits.view(torch.int32),
        bounds=_bounds(parts, bucket),
    )
    every = torch.arange(bucket.rows, device=seq_len.device)
    output = parts.target.forward(rows, parts.pool, every, parts.taps)
    noise = {"seed": seats.seed, "sample_index": seats.sample_index} if bucket.is_sampled else {}
    sampled = parts.kernels["sample_target_tokens"](
        logits=output.logits,
        positions=layout.positions,
        qo_indptr=layout.qo_indptr,
        temperature=seats.temperature,
        **noise,
    )
    return sampled, output.taps


def _bounds(parts: RoundParts, bucket: Bucket) -> Bounds:
    tree = min(bucket.rows, MAX_VERIFY)
    return Bounds(most_rows(parts, bucket), bucket.columns, tree, bucket.tile)


def most_rows(parts: RoundParts, bucket: Bucket) -> int:
    """Rows of one request at most, not those of the whole batch."""
    if parts.has_inert_request:
        return bucket.rows  # the request that owns the padding may have nearly all of them
    n_verify = parts.state.store.sort_scores.shape[1]
    # Every slot verifies its root at least, so nobody can have the others' rows.
    return min(n_verify, bucket.rows - bucket.slots + 1)


def draft(parts: RoundParts, bucket: Bucket, template: Template) -> None:
    """Extend from what was accepted, grow, choose what to verify next."""
    assert parts.draft is not None, "a round without a draft head has nothing to draft"
    state, n = parts.state, bucket.slots
    store = state.store.first(n)
    place = Place(parts.table, state.seats.table_row[:n], state.seq_len[:n], bucket.columns)
    gains = parts.draft.run(template, store, leading(state.accepted, n), place)
    n_nodes = template.n_nodes
    tree, chosen = store.tree(n_nodes), state.chosen[:n, :n_nodes]
    n_chosen = state.report.written[:n, REPORT.index("n_chosen")]
    parts.policy.select(tree, template.widths, chosen, n_chosen)
    if n_nodes < state.chosen.shape[1]:
        state.chosen[:n, n_nodes:] = False  # of a larger tree before
    if state.lessons is not None:
        parts.ops.note_chosen(tree, chosen, state.lessons.sent[:n])
        found = [gain for gain in gains if gain is not None]
        if found:
            torch.stack(found, out=state.lessons.gains[: len(found)])


def plain_round(parts: RoundParts, bucket: Bucket) -> None:
    """A round of an engine that never drafts: under its own name, for whoever reads a profile."""
    verify(parts, bucket)


def close(parts: RoundParts, bucket: Bucket) -> None:
    """End a round without drafting: the next tree of everybody is the root."""
    state, n = parts.state, bucket.slots
    state.chosen[:n, 1:] = False
    _keep_features(state, n)


def _keep_features(state: DeviceState, n: int) -> None:
    """Store what the draft was not shown, by position, until a round drafts again."""
    if state.history is None:
        return
    accepted, capacity = leading(state.accepted, n), state.history.shape[1]
    own = torch.arange(accepted.tokens.shape[1], device=accepted.count.device)
    is_real = own < accepted.count[:, None]
    position = (state.seq_len[:n] - accepted.count)[:, None] + own
    row = torch.where(is_real, state.seats.table_row[:n, None], state.inert_row)
    place = row * capacity + position.remainder(capacity)
    flat = state.history.flatten(0, 1)
    flat.index_copy_(0, place.reshape(-1), accepted.taps.flatten(0, 1))


def publish(state: DeviceState, n_slots: int, page: int) -> None:
    """Send the report to the host: the round's one read, complete when the device has caught up.

    `page` is the host's copy it is sent to: the other one may be read meanwhile.
    """
    report, n = state.report, n_slots
    report.read[page][:n].copy_(report.written[:n], non_blocking=True)
    if state.lessons is not None:
        lessons = state.lessons
        lessons.read_told[:n].copy_(lessons.told[:n], non_blocking=True)
        lessons.read_gains.copy_(lessons.gains, non_blocking=True)
