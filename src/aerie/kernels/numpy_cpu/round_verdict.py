"""NumPy R11 and R12: KV that moves, and the state a verdict leaves for the next round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels import report as columns

Ints = NDArray[np.int64]
Words = NDArray[np.int32]
Bools = NDArray[np.bool_]
Pool = NDArray[Any]


def move_kv_slots(*, keys: Pool, values: Pool, kv_src: Words, kv_dst: Words) -> dict[str, Any]:
    """R11: all reads, then all writes."""
    moved = ((kv_src != kv_dst) & (kv_src >= 0)).nonzero()[0]
    if len(moved):
        source, destination = kv_src[moved], kv_dst[moved]
        keys[:, destination] = keys.take(source, axis=1)
        values[:, destination] = values.take(source, axis=1)
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
    batch, run = accepted_tokens.shape
    if not batch:
        return {name: np.zeros((0, run), np.int64) for name in ("kept_rows", "deciding_rows")}
    status = commit_status
    for word in (walk_status, sample_status, layout_status):
        if word.any():
            status = np.where(word, word, status)
    is_decided = is_live & (status == 0)
    n_out = out_indptr[1:] - out_indptr[:-1]
    n_emitted = n_out * is_decided
    step = np.arange(run)
    tokens = out_tokens.take(out_indptr[:-1, None] + step, mode="clip")
    tokens *= step < n_out[:, None]
    np.maximum(tokens, 0, out=accepted_tokens)
    n_kept = (new_seq_len - seq_len) * is_decided
    kept_rows = qo_indptr[:-1, None] + accept_index
    kept_rows *= step < n_kept[:, None]
    deciding_rows = np.where(step < n_emitted[:, None], kept_rows, -1)
    accepted_count[...] = n_kept
    seq_len += n_kept
    is_live &= ~(is_decided & finished)
    last = tokens[np.arange(batch), n_emitted - 1]
    np.copyto(cumu_tokens[:, 0], last, where=n_emitted > 0)
    cumu_scores[:, 1:] = 0
    report[:, columns.N_EMITTED] = n_emitted
    report[:, columns.IS_FINISHED] = finished
    report[:, columns.STATUS] = status
    report[:, columns.N_ROWS] = qo_indptr[1:] - qo_indptr[:-1]
    report[:, columns.N_ACCEPTED] = accept_count
    report[:, columns.SEQ_LEN] = seq_len
    report[:, columns.N_CHOSEN] = 1
    report[:, len(columns.REPORT) :] = tokens
    return {"kept_rows": kept_rows, "deciding_rows": deciding_rows}
