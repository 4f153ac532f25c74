"""One round on the device: verify the trees that wait, commit, draft the next ones.

Both halves are functions of the state's buffers and of fixed sizes, without a host read, so that a
graph can hold either. `verify` turns chosen nodes into committed tokens; `draft` turns what was
committed into the next chosen nodes. With nothing to draft with, `verify` alone is plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.attention.bucket_rows import bucket_columns, bucket_tree_rows
from aerie.attention.pool import KVPool
from aerie.attention.rows import Bounds
from aerie.config import MAX_VERIFY
from aerie.engine.device_state import REPORT, DeviceState, Report, Seats, leading
from aerie.kernels.registry import Kernels
from aerie.models.decoder import Decoder
from aerie.speculation.device_draft import DeviceDraft, Place
from aerie.speculation.device_store import Template
from aerie.speculation.tree import DraftTree


@dataclass(frozen=True)
class Bucket:
    """The sizes a captured round is fixed to; a batch runs in the smallest that holds it."""

    slots: int  # requests
    rows: int  # verified rows, all requests together
    columns: int  # KV positions of one request, a round's own included
    is_sampled: bool  # some temperature is above zero


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
    select: Callable[[DraftTree], Tensor]


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
        # What is not moved carries the inert slot onto itself.
        source, destination = committed.kv_src.clamp_min(0), committed.kv_dst.clamp_min(0)
        parts.pool.move(source.long(), destination.long())
    words = (layout.status, targets.status, walked.status, committed.status)
    _hand_over(parts, bucket, _Verified(layout, walked, committed, taps, words))


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
    rows = bucket_tree_rows(
        layout.draft_tokens,
        layout.positions,
        layout.ancestor_bits.view(torch.int32),
        layout.qo_indptr,
        bucket_columns(lists.kv_indptr, lists.kv_indices),
        seq_len,
        Bounds(bucket.rows, bucket.columns, min(bucket.rows, MAX_VERIFY)),
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


@dataclass(frozen=True, eq=False)
class _Verified:
    layout: Any
    walked: Any
    committed: Any
    taps: Tensor  # [rows, captures, hidden]
    words: tuple[Tensor, ...]  # status words [B], in the order they are looked at


def _hand_over(parts: RoundParts, bucket: Bucket, found: _Verified) -> None:
    """Write what a verdict changes: lengths, roots, features for the draft, and the report."""
    state, n = parts.state, bucket.slots
    committed, accepted = found.committed, leading(state.accepted, n)
    status = found.words[-1]
    for word in reversed(found.words[:-1]):
        status = torch.where(word != 0, word, status)
    # A failed request stands where it stood; without features its next tree is the root alone.
    is_decided = state.seats.is_live[:n] & (status == 0)
    n_emitted = committed.out_indptr.diff() * is_decided
    tokens = _unpack(committed.out_tokens, committed.out_indptr, accepted.tokens)
    accepted.tokens.copy_(tokens.clamp_min(0))
    # Rows are listed for those who go on: nobody else is drafted for.
    accepted.count.copy_(committed.rows_indptr.diff() * is_decided)
    if parts.draft is not None:
        kept = _unpack(committed.out_rows, committed.rows_indptr, accepted.tokens)
        accepted.taps.copy_(found.taps[kept])
    seq_len = torch.where(is_decided, committed.new_seq_len, state.seq_len[:n])
    state.seq_len[:n].copy_(seq_len)
    last = tokens.gather(1, (n_emitted.long() - 1).clamp_min(0)[:, None])[:, 0]
    roots = state.store.arrays["cumu_tokens"][:n, 0]
    state.store.first(n).plant(torch.where(n_emitted > 0, last, roots))
    values = {
        "n_emitted": n_emitted,
        "is_finished": committed.finished,
        "status": status,
        "n_rows": found.layout.qo_indptr.diff(),
        "n_accepted": found.walked.accept_count,
        "seq_len": seq_len,
        "n_chosen": torch.ones_like(seq_len),  # the root; a draft writes what it chose
    }
    columns = torch.stack([values[name].int() for name in REPORT], dim=1)
    state.report.written[:n].copy_(torch.cat((columns, tokens.int()), dim=1))


def _unpack(flat: Tensor, indptr: Tensor, like: Tensor) -> Tensor:
    """Ragged runs as rows [B, n], 0 behind a run's end; `like` gives the shape."""
    step = torch.arange(like.shape[1], device=flat.device)
    place = (indptr[:-1, None] + step).clamp_max_(flat.shape[0] - 1)
    return flat[place] * (step < indptr.diff()[:, None])


def draft(parts: RoundParts, bucket: Bucket, template: Template) -> None:
    """Extend from what was accepted, grow, choose what to verify next."""
    assert parts.draft is not None, "a round without a draft head has nothing to draft"
    state, n = parts.state, bucket.slots
    store = state.store.first(n)
    place = Place(parts.table, state.seats.table_row[:n], state.seq_len[:n], bucket.columns)
    parts.draft.run(template, store, leading(state.accepted, n), place)
    chosen = parts.select(store.tree())
    state.chosen[:n].copy_(chosen)
    state.report.written[:n, REPORT.index("n_chosen")] = chosen.sum(dim=1).int()
    _publish(state.report, bucket)


def plain_round(parts: RoundParts, bucket: Bucket) -> None:
    """A round without drafts: every tree is its root."""
    verify(parts, bucket)
    _publish(parts.state.report, bucket)


def _publish(report: Report, bucket: Bucket) -> None:
    """Send the report to the host: the round's one read, complete when the device has caught up."""
    report.read[: bucket.slots].copy_(report.written[: bucket.slots], non_blocking=True)
