"""What a verdict changes: lengths, roots, features for the draft, counts, texts, the report."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aerie.engine.buckets import Bucket
from aerie.engine.parts import Parts, Verdict
from aerie.engine.report import TOP_LOGPROBS
from aerie.engine.state import State, noted_parts
from aerie.kernels.report import N_EMITTED
from aerie.speculation.tree import DraftTree


def hand_over(
    parts: Parts, bucket: Bucket, layout: Any, verdict: Verdict, committed: Any, output: Any
) -> Tensor:
    """Write everything that was decided where the next draft and the host find it.

    Returns the rows that were kept [B, run] i64, 0 behind them.
    """
    state, n = parts.state, bucket.seats
    report, arrays = state.report, state.store.first(n).arrays
    before = state.seq_len[:n].clone() if state.text is not None else None
    handed = parts.kernels["hand_over_verdict"](
        layout_status=layout.status,
        sample_status=verdict.sample_status,
        walk_status=verdict.walk_status,
        commit_status=committed.status,
        out_tokens=committed.out_tokens,
        out_indptr=committed.out_indptr,
        new_seq_len=committed.new_seq_len,
        finished=committed.finished,
        qo_indptr=layout.qo_indptr,
        accept_index=verdict.accept_index,
        accept_count=verdict.accept_count,
        is_live=state.is_live[:n],
        seq_len=state.seq_len[:n],
        cumu_tokens=arrays["cumu_tokens"],
        cumu_scores=arrays["cumu_scores"],
        accepted_tokens=state.kept.tokens[:n],
        accepted_count=state.kept.count[:n],
        report=report.lines[:n],
    )
    kept: Tensor = handed.kept_rows
    if parts.taps:
        state.kept.taps[:n] = output.taps[kept]
    report.trees[:, :n] = state.noted[:, :n]
    report.path[:n] = verdict.accept_index
    n_emitted = report.lines[:n, N_EMITTED]
    own = None if parts.is_preview else parts.previews
    if parts.near_limit is not None:
        # Before the counts of penalties grow: from what the tokens were chosen.
        _find_near(parts, bucket, handed.deciding_rows, verdict)
    if bucket.options.penalties:
        state.columns.count(n, state.kept.tokens[:n], n_emitted)
    if before is not None:
        _write_text(state, n, before, n_emitted)
    if parts.copied is not None:
        # A path behind the run of a preview was copied for another place.
        judged = n_emitted if own is None else n_emitted * (own.count[:n] == 0)
        parts.copied.learn(state.kept.tokens[:n], judged)
    if bucket.options.logprobs:
        _score(parts, bucket, handed.deciding_rows, output.logits)
    if own is not None:
        report.run[:n] = own.count[:n]
    return kept


def _write_text(state: State, n: int, before: Tensor, n_emitted: Tensor) -> None:
    """Append what was emitted to the texts that paths are copied from."""
    assert state.text is not None
    tokens = state.kept.tokens[:n]
    step = torch.arange(tokens.shape[1], device=tokens.device)
    is_real = step < n_emitted[:, None]
    # The root stands at seq_len, what a round emits behind it.
    column = (before[:, None] + 1 + step).clamp_max(state.text.shape[1] - 1)
    row = torch.where(is_real, state.seats("table_row", n)[:, None], state.told.inert_row)
    state.text[row, column] = tokens.int()


def _find_near(parts: Parts, bucket: Bucket, rows: Tensor, verdict: Verdict) -> None:
    """Which emitted tokens another company might have decided otherwise."""
    state, n = parts.state, bucket.seats
    assert verdict.sampled is not None, "coins are not counted"
    assert parts.near_limit is not None, "asked before"
    found = parts.kernels["find_near_ties"](
        **verdict.sampled, rows=rows, tokens=state.kept.tokens[:n], limit=parts.near_limit[:n]
    )
    state.report.near[:n] = found.near_ties


def _score(parts: Parts, bucket: Bucket, rows: Tensor, logits: Tensor) -> None:
    """Log-probabilities of the emitted tokens."""
    state, n = parts.state, bucket.seats
    found = parts.kernels["score_target_tokens"](
        logits=logits,
        rows=rows,
        tokens=state.kept.tokens[:n],
        wanted=state.columns.numbers["wanted"][:n].int(),
        top_n=TOP_LOGPROBS,
    )
    state.report.logprobs[:n] = found.chosen_logprobs
    state.report.top_tokens[:n] = found.top_tokens
    state.report.top_logprobs[:n] = found.top_logprobs


def note_trees(parts: Parts, tree: DraftTree, chosen: Tensor) -> None:
    """Keep the chosen trees in row order: what the report tells of them, once they are verified."""
    parts.kernels["note_chosen_nodes"](
        cumu_scores=tree.scores,
        cumu_deltas=tree.depths,
        cumu_tokens=tree.tokens,
        prev_indexs=tree.parents,
        selected=chosen,
        **noted_parts(parts.state.noted, chosen.shape[0]),
    )


def keep_features(state: State, n: int) -> None:
    """Store what the draft was not shown, by position, until a round drafts again."""
    history = state.features.history
    if history is None:
        return
    kept, capacity = state.kept, history.taps.shape[1]
    count = kept.count[:n]
    own = torch.arange(kept.tokens.shape[1], device=count.device)
    position = (state.seq_len[:n] - count)[:, None] + own
    is_real = own < count[:, None]
    row = torch.where(is_real, state.seats("table_row", n)[:, None], state.told.inert_row)
    place = (row * capacity + position.remainder(capacity)).reshape(-1)
    history.taps.flatten(0, 1).index_copy_(0, place, kept.taps[:n].flatten(0, 1))
    history.tokens.flatten().index_copy_(0, place, kept.tokens[:n].flatten())
