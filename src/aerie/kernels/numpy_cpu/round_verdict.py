"""NumPy R12: the state a verdict leaves for the next round."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels import report as columns
from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_verdict import HandedOver


@takes_call
def hand_over_verdict(call: HandedOver) -> dict[str, Any]:
    """R12: lengths, roots, emitted tokens, rows to take in, and the report."""
    is_live = call.is_live
    seq_len = call.seq_len
    batch, run = call.accepted_tokens.shape
    if not batch:
        return {name: np.zeros((0, run), np.int64) for name in ("kept_rows", "deciding_rows")}
    status = call.commit_status
    for word in (call.walk_status, call.sample_status, call.layout_status):
        if word.any():
            status = np.where(word, word, status)
    is_decided = is_live & (status == 0)
    n_out = call.out_indptr[1:] - call.out_indptr[:-1]
    n_emitted = n_out * is_decided
    step = np.arange(run)
    tokens = call.out_tokens.take(call.out_indptr[:-1, None] + step, mode="clip")
    tokens *= step < n_out[:, None]
    np.maximum(tokens, 0, out=call.accepted_tokens)
    n_kept = (call.new_seq_len - seq_len) * is_decided
    kept_rows = call.qo_indptr[:-1, None] + call.accept_index
    kept_rows *= step < n_kept[:, None]
    deciding_rows = np.where(step < n_emitted[:, None], kept_rows, -1)
    call.accepted_count[...] = n_kept
    seq_len += n_kept
    is_live &= ~(is_decided & call.finished)
    last = tokens[np.arange(batch), n_emitted - 1]
    np.copyto(call.cumu_tokens[:, 0], last, where=n_emitted > 0)
    call.cumu_scores[:, 1:] = 0
    call.report[:, columns.N_EMITTED] = n_emitted
    call.report[:, columns.IS_FINISHED] = call.finished
    call.report[:, columns.STATUS] = status
    call.report[:, columns.N_ROWS] = call.qo_indptr[1:] - call.qo_indptr[:-1]
    call.report[:, columns.N_ACCEPTED] = call.accept_count
    call.report[:, columns.SEQ_LEN] = seq_len
    call.report[:, columns.N_CHOSEN] = 1
    call.report[:, len(columns.REPORT) :] = tokens
    return {"kept_rows": kept_rows, "deciding_rows": deciding_rows}
