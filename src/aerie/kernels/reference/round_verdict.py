"""Reference of what a verdict changes: R11 KV that moves, R12 the state of the next round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.report import REPORT

Ints = NDArray[np.int64]
Words = NDArray[np.int32]
Bools = NDArray[np.bool_]
Pool = NDArray[Any]


def move_kv_slots(*, keys: Pool, values: Pool, kv_src: Words, kv_dst: Words) -> dict[str, Any]:
    """R11: all reads, then all writes."""
    moves = [(src, dst) for src, dst in zip(kv_src, kv_dst, strict=True) if src >= 0]
    for pool in (keys, values):
        held = [pool[:, src].copy() for src, _ in moves]
        for (_, dst), rows in zip(moves, held, strict=True):
            pool[:, dst] = rows
    return {}


def hand_over_verdict(
    *,
    layout_status: Words,
    sample_status: Words,
    walk_status: Words,
    commit_status: Words,
    out_tokens: Ints,
    out_indptr: Words,
    new_seq_len: Ints,
    finished: Bools,
    qo_indptr: Words,
    accept_index: Ints,
    accept_count: Ints,
    is_live: Bools,
    seq_len: Ints,
    cumu_tokens: Ints,
    cumu_scores: NDArray[np.float32],
    accepted_tokens: Ints,
    accepted_count: Ints,
    report: Words,
) -> dict[str, Any]:
    """R12: lengths, roots, emitted tokens, rows to take in, and the report."""
    kept_rows, deciding_rows = np.zeros_like(accepted_tokens), np.full_like(accepted_tokens, -1)
    words = np.stack((layout_status, sample_status, walk_status, commit_status), axis=1)
    for b in range(len(seq_len)):
        status = next((int(word) for word in words[b] if word), 0)
        is_decided = bool(is_live[b]) and status == 0
        tokens = out_tokens[out_indptr[b] : out_indptr[b + 1]]
        n_kept = int(new_seq_len[b] - seq_len[b]) if is_decided else 0
        rows = qo_indptr[b] + accept_index[b, :n_kept]
        if is_decided:
            is_live[b] = not finished[b]
            seq_len[b] = new_seq_len[b]
            if len(tokens):
                cumu_tokens[b, 0] = tokens[-1]
        cumu_scores[b, 1:] = 0
        accepted_tokens[b] = 0
        accepted_tokens[b, : len(tokens)] = np.maximum(tokens, 0)
        accepted_count[b] = n_kept
        kept_rows[b, :n_kept] = rows
        n_emitted = len(tokens) if is_decided else 0
        deciding_rows[b, :n_emitted] = kept_rows[b, :n_emitted]
        columns = {
            "n_emitted": n_emitted,
            "is_finished": finished[b],
            "status": status,
            "n_rows": qo_indptr[b + 1] - qo_indptr[b],
            "n_accepted": accept_count[b],
            "seq_len": seq_len[b],
            "n_chosen": 1,
        }
        report[b] = 0
        report[b, : len(REPORT)] = [columns[name] for name in REPORT]
        report[b, len(REPORT) : len(REPORT) + len(tokens)] = tokens
    return {"kept_rows": kept_rows, "deciding_rows": deciding_rows}
