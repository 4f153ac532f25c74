"""What the arrays of a call decide about its traffic: requests taken, rows, spans, parents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.status import Status

Array = NDArray[Any]
Values = Mapping[str, Array]
Counts = dict[str, int]

_NO_ROWS = (Status.BROKEN_LAYOUT, Status.ROW_CAPACITY)
# Refusals of K6 that are found before the first probability or target token is read.
_BEFORE_WALK = (*_NO_ROWS, Status.BROKEN_TREE, Status.DUPLICATE_SIBLING, Status.OUT_OF_RANGE)


def _statuses(outputs: Values) -> list[Status]:
    return [Status(int(word)) for word in outputs["status"]]


def _taken(outputs: Values) -> Array:
    return np.equal(outputs["status"], 0)


def _row_counts(inputs: Values) -> Array:
    return np.diff(np.asarray(inputs["qo_indptr"]).astype(np.int64))


def _rows_but(refused: Collection[Status], inputs: Values, outputs: Values) -> list[int]:
    """Rows of each request that was not refused in one of these ways."""
    pairs = zip(_row_counts(inputs).tolist(), _statuses(outputs), strict=True)
    return [n_rows for n_rows, status in pairs if status not in refused]


def _layer(inputs: Values, outputs: Values) -> Counts:
    taken = _taken(outputs)
    parents = np.asarray(outputs["parent_indices_in_layer"])[taken]
    return {"taken": int(taken.sum()), "parents": sum(len(set(row)) for row in parents.tolist())}


def _state(inputs: Values, outputs: Values) -> Counts:
    return {"taken": int(_taken(outputs).sum())}


def _nodes(inputs: Values, outputs: Values) -> Counts:
    n_nodes, length = inputs["node_count"], inputs["seq_len"]
    capacity = inputs["selected"].shape[1]
    listed = (n_nodes >= 1) & (n_nodes <= capacity) & (length >= 0)
    return {
        "listed": int(listed.sum()),
        "chosen": int(inputs["selected"][listed].sum()),
        "rows": int(outputs["qo_indptr"][-1]),
    }


def _mask(inputs: Values, outputs: Values) -> Counts:
    rows = _row_counts(inputs)[_taken(outputs)]
    return {"rows": int(rows.sum()), "slots": int(outputs["kv_indptr"][-1])}


def _probabilities(inputs: Values, outputs: Values) -> Counts:
    rows, rewritten = 0, 0
    unread = (*_NO_ROWS, Status.BAD_PARAMETER)
    for b, status in enumerate(_statuses(outputs)):
        if status in unread:
            continue
        first, end = inputs["qo_indptr"][b : b + 2]
        rows += int(end - first)
        if status != Status.OK:
            sound = _sound_rows(inputs["logits"][first:end], inputs["temperature"][b])
            rewritten += int(np.argmin(sound))
    return {"rows": rows, "rewritten": rewritten}


def _sound_rows(logits: Array, temperature: Any) -> Array:
    """Rows with a token to choose and without NaN or +inf, at a temperature."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = logits if temperature < np.float32(1e-6) else logits / temperature
    is_finite = ~(np.isnan(scaled) | (scaled == np.inf)).any(axis=1)
    return np.asarray(is_finite & (scaled > -np.inf).any(axis=1))


def _walk(inputs: Values, outputs: Values) -> Counts:
    loaded, walked = (_rows_but(own, inputs, outputs) for own in (_NO_ROWS, _BEFORE_WALK))
    return {"loaded": sum(loaded), "walked_rows": sum(walked), "walked": len(walked)}


def _sampling(inputs: Values, outputs: Values) -> Counts:
    early = (*_NO_ROWS, Status.BAD_PARAMETER, Status.OUT_OF_RANGE)
    read = [n_rows for n_rows in _rows_but(early, inputs, outputs) if n_rows]
    loaded = _rows_but(_NO_ROWS, inputs, outputs)
    return {"loaded": sum(loaded), "rows": sum(read), "read": len(read)}


def _commit(inputs: Values, outputs: Values) -> Counts:
    rows, taken = _row_counts(inputs), _taken(outputs)
    live = taken & (rows > 0)
    kept = (np.asarray(outputs["new_seq_len"]) - np.asarray(inputs["seq_len"]))[live]
    return {
        "live": int(live.sum()),
        "bonus": int(live.sum()),
        "rows": int(rows[live].sum()),
        # The root is kept as well, and its token was emitted in an earlier round.
        "accepted": int((kept - 1).sum()),
    }


def _lists(inputs: Values, outputs: Values) -> Counts:
    statuses = _statuses(outputs)
    sound = [status in (Status.OK, Status.KV_CAPACITY) for status in statuses]
    taken = _taken(outputs)
    return {
        "taken": int(taken.sum()),
        "sound": sum(sound),
        "prefix": int(np.asarray(inputs["seq_len"])[taken].sum()),
    }


def _spans(inputs: Values, outputs: Values) -> Counts:
    spans = [int(e) - int(s) for s, e in zip(inputs["start"], inputs["end"], strict=True)]
    judged = (Status.OK, Status.BROKEN_LAYOUT)
    pairs = list(zip(spans, _statuses(outputs), strict=True))
    return {
        "judged": sum(span for span, status in pairs if status in judged),
        "assigned": sum(span for span, status in pairs if status == Status.OK),
    }


def _draft_replay(inputs: Values, outputs: Values) -> Counts:
    return {"bucket": int(outputs["bucket"])}


def _extend_replay(inputs: Values, outputs: Values) -> Counts:
    return {
        "clean": int(_taken(outputs).all()),
        "bucket": int(outputs["bucket"]),
        "row_bucket": int(outputs["row_bucket"]),
    }


def _slots(inputs: Values, outputs: Values) -> Counts:
    return {"dead": len(inputs["finished"]) - int(outputs["active_count"][0])}


def _fused_growth(inputs: Values, outputs: Values) -> Counts:
    """A request that proposes a token twice is read up to that level and no further."""
    widths, tokens = inputs["widths"].tolist(), inputs["level_tokens"]
    top_k = tokens.shape[2] // max(widths)
    candidates = 0
    for b in range(tokens.shape[1]):
        for level, width in enumerate(widths):
            slots = tokens[level, b, : width * top_k].reshape(width, top_k)
            candidates += width * top_k
            if any(len(set(slot)) < top_k for slot in slots.tolist()):
                break
    return {"candidates": candidates, "slots": int(outputs["kv_indptr"][-1])}


def _fused_verdict(inputs: Values, outputs: Values) -> Counts:
    """Rows given as arrays; rows that lie on chip are the region's own."""
    rows = _row_counts(inputs)
    early = (*_BEFORE_WALK, Status.TABLE_ROW, Status.NEGATIVE_LENGTH)
    loaded = sum(_rows_but(_NO_ROWS, inputs, outputs))
    live = _taken(outputs) & (rows > 0)
    return {
        "loaded": loaded if "draft_tokens" in inputs else 0,
        "read": sum(_rows_but(early, inputs, outputs)),
        "live": int(live.sum()),
        "rows": int(rows[live].sum()),
    }


def _attend(inputs: Values, outputs: Values) -> Counts:
    """Columns of all requests: from the oldest a row sees to the newest."""
    indptr, positions = inputs["row_indptr"].tolist(), inputs["positions"]
    window, n_fed = int(inputs["window"]), int(inputs["n_fed"])
    columns = 0
    for b, (first, end) in enumerate(pairwise(indptr)):
        own = positions[first:end].tolist()
        columns += _columns_seen(own, int(inputs["seq_len"][b]), window, n_fed)
    return {"columns": columns}


def _columns_seen(positions: list[int], length: int, window: int, n_fed: int) -> int:
    oldest = [max(0, p - window + 1) if window else 0 for p in positions]
    end = length + n_fed if n_fed else max(p + 1 for p in positions)
    return end - min([length, *oldest])


def _fused_draft(inputs: Values, outputs: Values) -> Counts:
    """The passes a draft really made, from the widths it says it used."""
    widths = [width for width in outputs["used_widths"].tolist() if width]
    lengths, batch = inputs["seq_len"].tolist(), len(inputs["seq_len"])
    window = int(inputs["window"])
    is_whole = int(inputs["head_kind"]) == 0
    new = inputs["new_positions"].tolist()
    columns, angles, n_fed = 0, _changes(new), 0
    for b, (first, end) in enumerate(pairwise(inputs["row_indptr"].tolist())):
        columns += _columns_seen(new[first:end], lengths[b], window, 0)
    for level, width in enumerate(widths[1:]):
        n_fed += width
        positions = [[length + level] * width for length in lengths]
        for length, own in zip(lengths, positions, strict=True):
            columns += _columns_seen(own, length, window, n_fed)
        angles += _changes([position for own in positions for position in own])
    return {
        "levels": len(widths),
        "layers": len(widths),
        "fed": batch * sum(widths[1:]),
        "columns": columns,
        "angles": angles,
        # Every level but the last asks how wide the next may be.
        "asked": min(len(widths), len(inputs["widths"]) - 1),
        "slots": int(outputs["kv_indptr"][-1]),
        "head_rows": (
            len(widths) * int(inputs["V"]) if is_whole else int(outputs["rescored"].sum())
        ),
    }


def _changes(positions: list[int]) -> int:
    """Rows whose position is not the one before it: each loads its angles."""
    return sum(now != before for before, now in pairwise([-1, *positions]))


COUNTS: Mapping[str, Callable[[Values, Values], Counts]] = {
    "draft_tree_layer_score_index_gen_op": _layer,
    "update_cumu_draft_state": _state,
    "update_node_data": _nodes,
    "fused_tree_mask_operator": _mask,
    "convert_logits_to_probas": _probabilities,
    "draft_tree_reject_sample": _walk,
    "sample_target_tokens": _sampling,
    "update_verify_result": _commit,
    "compute_kv_indices": _lists,
    "assign_draft_cache_locs_operator": _spans,
    "assign_req_to_token_pool_operator": _spans,
    "draft_replay_input_operator": _draft_replay,
    "extend_replay_input_operator": _extend_replay,
    "build_active_slots": _slots,
    "draft_attend": _attend,
    "fused_draft": _fused_draft,
    "fused_growth": _fused_growth,
    "fused_verdict": _fused_verdict,
}
