"""Reference of K7: clip the accepted runs, compact the batch, plan the KV moves.

A request is a dozen numbers, so requests are walked one by one in plain Python: at any batch size
an engine on a CPU can serve, that costs less than the sixty array operations it would take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards.commit import VerifyResult
from aerie.kernels.ragged import check_table_span, request_spans
from aerie.kernels.refusals import Refusals
from aerie.kernels.status import Status


@dataclass
class _Batch:
    """What the requests emit, keep, move and free, in their order."""

    tokens: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    moves: list[tuple[int, int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    token_ends: list[int] = field(default_factory=lambda: [0])
    row_ends: list[int] = field(default_factory=lambda: [0])

    def close(self) -> None:
        """The request is done; what follows belongs to the next one."""
        self.token_ends.append(len(self.tokens))
        self.row_ends.append(len(self.rows))


@takes_call
def update_verify_result(call: VerifyResult) -> dict[str, Any]:
    """K7: emitted tokens, kept rows, finished and unfinished requests, KV moves, freed slots."""
    batch, run = call.accept_index.shape
    refusals = Refusals(batch)
    spans = request_spans(refusals, call.qo_indptr, len(call.draft_tokens))
    rows = spans.ranges()
    paths = [
        _path(refusals, b, *entry)
        for b, entry in enumerate(
            zip(call.accept_index.tolist(), call.accept_count.tolist(), rows, strict=True)
        )
    ]
    check_table_span(refusals, call, spans.count)
    tokens, bonus = call.draft_tokens.tolist(), call.bonus_token.tolist()
    stops, limits = call.stop_tokens.tolist(), call.length_limit.tolist()
    lengths, table_rows = call.seq_len.tolist(), call.req_pool_indices.tolist()
    # seq_len tokens and the root are there already; Python's integers, for a limit may be any.
    room = [limit - length - 1 for limit, length in zip(limits, lengths, strict=True)]
    new_lengths, finished = lengths.copy(), [False] * batch
    out = _Batch()
    for b, (own, path) in enumerate(zip(rows, paths, strict=True)):
        if len(own) and not refusals.status[b]:
            accepted = [tokens[own.start + row] for row in path[1:]]
            emitted, finished[b] = _clip([*accepted, bonus[b]], stops[b], room[b])
            # The bonus has no KV yet; the root always has.
            kept = path[: 1 + min(len(emitted), len(accepted))]
            slots = call.req_to_token[table_rows[b], lengths[b] : lengths[b] + len(own)].tolist()
            out.tokens += emitted
            out.moves += [(slots[row], slots[k]) for k, row in enumerate(kept) if row != k]
            out.freed += slots[len(kept) :]
            new_lengths[b] += len(kept)
            if not finished[b]:
                out.unfinished.append(b)
                out.rows += [own.start + row for row in kept]
        out.close()
    sources, targets = zip(*out.moves, strict=True) if out.moves else ((), ())
    return {
        "out_tokens": _padded(out.tokens, batch * run, np.int64),
        "out_indptr": np.array(out.token_ends, np.int32),
        "out_rows": _padded(out.rows, batch * run, np.int64),
        "rows_indptr": np.array(out.row_ends, np.int32),
        "new_seq_len": np.array(new_lengths, np.int64),
        "finished": np.array(finished, np.bool_),
        "unfinished": _padded(out.unfinished, batch, np.int64),
        "unfinished_count": np.array([len(out.unfinished)], np.int32),
        "kv_src": _padded(sources, batch * run, np.int32),
        "kv_dst": _padded(targets, batch * run, np.int32),
        "move_count": np.array([len(out.moves)], np.int32),
        "free": _padded(out.freed, len(call.draft_tokens), np.int32),
        "free_count": np.array([len(out.freed)], np.int32),
        **refusals.words(),
    }


def _path(refusals: Refusals, b: int, index: list[int], count: int, rows: range) -> list[int]:
    """Row 0 and the accepted rows; refuses a path that does not ascend within the request."""
    if not 0 <= count < len(index):
        refusals.refuse(b, Status.TOO_DEEP, count)
        return []
    path = index[: count + 1]
    if len(rows):
        ascends = all(map(int.__lt__, path, path[1:]))
        if path[0] != 0 or not ascends or path[-1] >= len(rows):
            refusals.refuse(b, Status.BROKEN_TREE, path[-1])
    return path


def _clip(tokens: list[int], stops: list[int], room: int) -> tuple[list[int], bool]:
    """Cut after the first stop token or where the room ends; say whether that ends the text."""
    room = max(room, 0)
    for n, token in enumerate(tokens[:room], start=1):
        if token >= 0 and token in stops:
            return tokens[:n], True
    return tokens[:room], len(tokens) >= room


def _padded(values: Any, capacity: int, dtype: Any) -> NDArray[Any]:
    padded = np.full(capacity, -1, dtype)
    padded[: len(values)] = values
    return padded
