"""Reference of what a verdict changes: R11 KV that moves, R12 the state of the next round."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_verdict import HandedOver, MovedSlots
from aerie.kernels.report import REPORT


@takes_call
def move_kv_slots(call: MovedSlots) -> dict[str, Any]:
    """R11: all reads, then all writes."""
    moved = ((call.kv_src != call.kv_dst) & (call.kv_src >= 0)).nonzero()[0]
    if len(moved):
        source, destination = call.kv_src[moved], call.kv_dst[moved]
        call.keys[:, destination] = call.keys.take(source, axis=1)
        call.values[:, destination] = call.values.take(source, axis=1)
    return {}


@takes_call
def hand_over_verdict(call: HandedOver) -> dict[str, Any]:
    """R12: lengths, roots, emitted tokens, rows to take in, and the report."""
    kept_rows = np.zeros_like(call.accepted_tokens)
    deciding_rows = np.full_like(call.accepted_tokens, -1)
    words = (call.layout_status, call.sample_status, call.walk_status, call.commit_status)
    for b in range(len(call.seq_len)):
        status = next((int(word[b]) for word in words if word[b]), 0)
        is_decided = bool(call.is_live[b]) and status == 0
        tokens = call.out_tokens[call.out_indptr[b] : call.out_indptr[b + 1]]
        n_kept = int(call.new_seq_len[b] - call.seq_len[b]) if is_decided else 0
        rows = call.qo_indptr[b] + call.accept_index[b, :n_kept]
        if is_decided:
            call.is_live[b] = not call.finished[b]
            call.seq_len[b] = call.new_seq_len[b]
            if len(tokens):
                call.cumu_tokens[b, 0] = tokens[-1]
        call.cumu_scores[b, 1:] = 0
        call.accepted_tokens[b] = 0
        call.accepted_tokens[b, : len(tokens)] = np.maximum(tokens, 0)
        call.accepted_count[b] = n_kept
        kept_rows[b, :n_kept] = rows
        n_emitted = len(tokens) if is_decided else 0
        deciding_rows[b, :n_emitted] = kept_rows[b, :n_emitted]
        columns = {
            "n_emitted": n_emitted,
            "is_finished": call.finished[b],
            "status": status,
            "n_rows": call.qo_indptr[b + 1] - call.qo_indptr[b],
            "n_accepted": call.accept_count[b],
            "seq_len": call.seq_len[b],
            "n_chosen": 1,
        }
        call.report[b] = 0
        call.report[b, : len(REPORT)] = [columns[name] for name in REPORT]
        call.report[b, len(REPORT) : len(REPORT) + len(tokens)] = tokens
    return {"kept_rows": kept_rows, "deciding_rows": deciding_rows}
