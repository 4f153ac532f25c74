"""Reference of K7: clip the accepted runs, compact the batch, plan the KV moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards.commit import VerifyResult
from aerie.kernels.numpy_types import Int32s, Ints
from aerie.kernels.reference.ragged import request_rows, table_span
from aerie.kernels.reference.refusals import Refusals
from aerie.kernels.status import Status


@dataclass
class _Outcome:
    """What the batch emits, keeps, moves and frees, appended request by request."""

    tokens: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)


@takes_call
def update_verify_result(call: VerifyResult) -> dict[str, Any]:
    """K7: emitted tokens, kept rows, finished and unfinished requests, KV moves, freed slots."""
    batch, run = call.accept_index.shape
    refusals = Refusals(batch)
    outcome = _Outcome()
    out_indptr = np.zeros(batch + 1, np.int32)
    rows_indptr = np.zeros(batch + 1, np.int32)
    new_seq_len = call.seq_len.copy()
    finished = np.zeros(batch, np.bool_)
    for b in range(batch):
        rows = request_rows(refusals, b, call.qo_indptr, len(call.draft_tokens))
        path = _accepted_path(refusals, b, call, len(rows))
        slots = table_span(refusals, b, call, len(rows))[int(call.seq_len[b]) :]
        if not refusals.refused(b) and len(rows):
            accepted = [int(call.draft_tokens[rows.start + row]) for row in path[1:]]
            tokens = [*accepted, int(call.bonus_token[b])]
            room = int(call.length_limit[b]) - int(call.seq_len[b]) - 1
            emitted, is_last = _clip(tokens, call.stop_tokens[b], room)
            # The bonus has no KV yet; the root always has.
            kept = path[: 1 + min(len(emitted), len(accepted))]
            outcome.tokens += emitted
            new_seq_len[b] = call.seq_len[b] + len(kept)
            finished[b] = is_last
            if not is_last:
                outcome.unfinished.append(b)
                outcome.rows += [rows.start + row for row in kept]
            for k, row in enumerate(kept):
                if row != k:
                    outcome.sources.append(int(slots[row]))
                    outcome.targets.append(int(slots[k]))
            outcome.freed += [int(slot) for slot in slots[len(kept) :]]
        out_indptr[b + 1] = len(outcome.tokens)
        rows_indptr[b + 1] = len(outcome.rows)
    return {
        "out_tokens": _padded(outcome.tokens, batch * run, np.int64),
        "out_indptr": out_indptr,
        "out_rows": _padded(outcome.rows, batch * run, np.int64),
        "rows_indptr": rows_indptr,
        "new_seq_len": new_seq_len,
        "finished": finished,
        "unfinished": _padded(outcome.unfinished, batch, np.int64),
        "unfinished_count": _count(outcome.unfinished),
        "kv_src": _padded(outcome.sources, batch * run, np.int32),
        "kv_dst": _padded(outcome.targets, batch * run, np.int32),
        "move_count": _count(outcome.sources),
        "free": _padded(outcome.freed, len(call.draft_tokens), np.int32),
        "free_count": _count(outcome.freed),
        **refusals.words(),
    }


def _accepted_path(refusals: Refusals, b: int, call: VerifyResult, n_rows: int) -> list[int]:
    """Row 0 and the accepted rows; refuses a path that does not ascend within the request."""
    accept_index, accept_count = call.accept_index[b], int(call.accept_count[b])
    if not 0 <= accept_count < len(accept_index):
        refusals.add(b, Status.TOO_DEEP, accept_count)
        return []
    if not n_rows:
        return []
    path = [int(row) for row in accept_index[: accept_count + 1]]
    ascends = all(low < high for low, high in pairwise(path))
    if path[0] != 0 or not ascends or path[-1] >= n_rows:
        refusals.add(b, Status.BROKEN_TREE, path[-1])
        return []
    return path


def _clip(tokens: list[int], stops: Ints, room: int) -> tuple[list[int], bool]:
    """Cut after the first stop token or when the room is used up; say whether that ends it."""
    emitted: list[int] = []
    for token in tokens:
        if len(emitted) >= room:
            break
        emitted.append(token)
        if token in stops and token >= 0:
            return emitted, True
    return emitted, len(emitted) >= room


def _padded(values: list[int], capacity: int, dtype: Any) -> NDArray[Any]:
    padded = np.full(capacity, -1, dtype)
    padded[: len(values)] = values
    return padded


def _count(values: list[int]) -> Int32s:
    return np.array([len(values)], np.int32)
