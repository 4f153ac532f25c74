"""Cases of the memory kernels: K8 slot lists, K10a and K10b slot assignment."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.cases.draws import cycle, in_table
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, Row, cases, row
from aerie.kernels.cases.trees import Plan, grow

K8 = "compute_kv_indices"
K10A = "assign_draft_cache_locs_operator"
K10B = "assign_req_to_token_pool_operator"


def _lists(
    rng: Rng,
    seq: Any,
    batch: int | None = None,
    draft: tuple[int, tuple[int, ...]] | None = None,
    room: int = 0,
    n_columns: int = 2,
) -> Inputs:
    """K8 inputs; `draft` is the top_k and the frontier widths of a grown tree.

    `room` is what kv_capacity holds beyond (or below) the need.
    """
    n_requests = np.size(seq) if batch is None else batch
    seq_len = cycle(seq, n_requests, "int64")
    inputs: Inputs = {
        **in_table(rng, n_requests, int(seq_len.max(initial=0)) + n_columns),
        "seq_len": seq_len,
    }
    needed = int(seq_len.sum())
    if draft:
        mask = grow(rng, Plan(n_requests, *draft)).mask
        slots = rng.integers(0, 2**31 - 1, (n_requests, mask.shape[2]), dtype=np.int32)
        inputs |= {"tree_mask": mask, "fed_slots": slots}
        needed = needed * mask.shape[1] + int(mask.sum())
    return {**inputs, "kv_capacity": needed + room}


_DRAFT = (4, (1, 3, 2))

_LIST_ROWS = (
    row("b1_seq_1", "plain smallest", seq=1),
    row("b1_seq_0", "plain seq_0", seq=0),
    row("b3_ragged", "plain ragged capacity_exact", seq=(5, 0, 9)),
    row("b3_capacity_room", "plain capacity_room", seq=(5, 0, 9), room=6),
    row("b128_plain", "plain batch_limit", seq=(17, 0, 33, 1), batch=128),
    row("b2_seq_65537", "plain long_context", seq=(65_537, 3)),
    row("b0_plain", "plain empty_batch", seq=()),
    row("b0_no_table", "plain empty_batch no_table", blank("req_to_token", 0, 0), seq=()),
    row("b4_all_empty", "plain no_rows", seq=0, batch=4),
    row("b3_full_table", "plain full_table", seq=12, batch=3, n_columns=0),
    row("b3_shared_row", "plain shared_row", put("req_pool_indices", ..., 1), seq=(4, 5, 6)),
    row("b3_rows_descend", "plain pool_order", put("req_pool_indices", ..., [4, 2, 0]),
        seq=(4, 5, 6)),
    row("b3_negative_slots_copied", "plain slots_negative", put("req_to_token", ..., -1),
        seq=(4, 5, 6)),
    row("b1_draft_w1_first", "draft first_layer", seq=3, draft=(4, (1,))),
    row("b2_draft_w3", "draft", seq=(6, 2), draft=(4, (1, 3))),
    row("b3_draft_w2_depth2", "draft capacity_exact", seq=(6, 2, 11), draft=_DRAFT),
    row("b3_draft_room", "draft capacity_room", seq=(6, 2, 11), draft=_DRAFT, room=9),
    row("b128_draft_w3_k7", "draft batch_limit", seq=(5, 0, 12), batch=128, draft=(7, (1, 3, 3))),
    row("b2_draft_w10_k10", "draft width_limit", seq=(3, 4), draft=(10, (1, 10, 10))),
    row("b4_draft_w4_layer7", "draft deep", seq=(3, 4, 9, 1), draft=(4, (1, *[4] * 6))),
    row("b3_draft_k1_chain", "draft chain", seq=(3, 4, 0), draft=(1, (1,) * 6)),
    row("b2_draft_width_shrinks", "draft width_shrinks", seq=(3, 4), draft=(8, (1, 8, 3))),
    row("b2_draft_width_grows", "draft width_grows", seq=(3, 4), draft=(8, (1, 2, 8))),
    row("b3_draft_seq_0", "draft seq_0", seq=0, batch=3, draft=_DRAFT),
    row("b2_draft_seq_65537", "draft long_context", seq=(65_537, 1), draft=(3, (1, 3))),
    row("b0_draft", "draft empty_batch", seq=(), draft=_DRAFT),
    row("b2_draft_sees_nothing", "draft mask_empty", put("tree_mask", ..., False), seq=(3, 4),
        draft=_DRAFT, room=2),
    row("b2_draft_sees_all", "draft mask_full", put("tree_mask", ..., True), seq=(3, 4),
        draft=_DRAFT, room=90),
    row("b2_draft_mask_holes", "draft mask_holes", put("tree_mask", np.s_[:, :, ::2], False),
        seq=(3, 4), draft=_DRAFT, room=5),
    row("plain_one_short", "plain refused kv", BOUNDS, seq=(5, 0, 9), room=-1),
    row("draft_one_short", "draft refused kv", BOUNDS, seq=(5, 0, 9), draft=_DRAFT, room=-1),
    row("nothing_fits", "plain refused kv none", BOUNDS, setting(kv_capacity=0), seq=(5, 0, 9)),
    row("sequence_past_table", "plain refused table", BOUNDS, put("seq_len", 1, 12), seq=(5, 0, 9)),
    row("sequence_negative", "plain refused table negative", BOUNDS, put("seq_len", 1, -1),
        seq=(5, 0, 9)),
    row("sequence_at_int64", "plain refused table int64", BOUNDS, put("seq_len", 1, 2**63 - 1),
        seq=(5, 0, 9)),
    row("draft_sequence_past_table", "draft refused table", BOUNDS, put("seq_len", 1, 12),
        seq=(5, 0, 9), draft=_DRAFT),
    row("pool_row_past_table", "plain refused pool", BOUNDS, put("req_pool_indices", 2, 5),
        seq=(5, 0, 9)),
    row("pool_row_negative", "plain refused pool negative", BOUNDS, put("req_pool_indices", 0, -1),
        seq=(5, 0, 9)),
    row("b129", "beyond_batch", BOUNDS, seq=1, batch=129),
    row("w11", "beyond_width", BOUNDS, seq=(2, 3), draft=(10, (1, 10, 11))),
    row("columns_1025", "beyond_columns", BOUNDS, lambda inputs: inputs.update(
        tree_mask=np.zeros((2, 3, 1025), bool), fed_slots=np.zeros((2, 1025), np.int32)),
        seq=(2, 3)),
    row("table_rows_65537", "beyond_table_rows", BOUNDS, blank("req_to_token", 65_537, 0), seq=0),
    row("table_columns_2097153", "beyond_table_columns", BOUNDS,
        blank("req_to_token", 0, 2**21 + 1), seq=0),
    row("capacity_negative", "below_capacity", BOUNDS, setting(kv_capacity=-1), seq=(2, 3)),
    row("capacity_past_int32", "beyond_capacity", BOUNDS, setting(kv_capacity=2**31), seq=(2, 3)),
    row("mask_of_another_batch", "wrong_shape", BOUNDS, blank("tree_mask", 3, 2, 11), seq=(2, 3),
        draft=_DRAFT),
    row("table_int64", "wrong_dtype", DTYPE, cast("req_to_token", "int64"), seq=(2, 3)),
    row("mask_uint8", "wrong_dtype mask", DTYPE, cast("tree_mask", "uint8"), seq=(2, 3),
        draft=_DRAFT),
)  # fmt: skip


def _spans(
    rng: Rng,
    start: Any,
    length: Any,
    batch: int | None = None,
    n_columns: int = 3,
) -> Inputs:
    n_requests = max(np.size(start), np.size(length)) if batch is None else batch
    first = cycle(start, n_requests, "int64")
    end = first + cycle(length, n_requests, "int64")
    return {
        **in_table(rng, n_requests, int(end.max(initial=0)) + n_columns),
        "start": first,
        "end": end,
    }


def _per_request(rng: Rng, room: int = 0, **spans: Any) -> Inputs:
    """K10a inputs: a row of slots for each request, `room` wider than the longest span."""
    inputs = _spans(rng, **spans)
    needed = int((inputs["end"] - inputs["start"]).max(initial=0))
    shape = (len(inputs["start"]), needed + room)
    return {**inputs, "out_cache_loc": rng.integers(0, 2**31 - 1, shape, dtype=np.int32)}


def _flat(rng: Rng, room: int = 0, **spans: Any) -> Inputs:
    """K10b inputs: one list of slots for all requests, `room` longer than all spans together."""
    inputs = _spans(rng, **spans)
    needed = int(np.maximum(inputs["end"] - inputs["start"], 0).sum())
    slots = rng.integers(0, 2**31 - 1, needed + room, dtype=np.int32)
    return {**inputs, "out_cache_loc": slots}


_THREE = {"start": (4, 0, 7), "length": (3, 5, 1)}

# Both assignments write the same spans; they differ in how the slots are handed over.
_SPAN_ROWS: tuple[Row, ...] = (
    row("b1_one_slot", "smallest", start=0, length=1),
    row("b3_spans", "ragged capacity_exact", **_THREE),
    row("b3_spans_room", "ragged capacity_room", room=4, **_THREE),
    row("b128_spans", "batch_limit", start=(4, 0, 19), length=(3, 8, 1, 0, 5), batch=128),
    row("b128_one_slot_each", "batch_limit decode", start=(4, 0, 19), length=1, batch=128),
    row("b2_whole_rows", "full_table", start=0, length=16, batch=2, n_columns=0),
    row("b3_end_of_table", "full_table edge", start=9, length=4, batch=3, n_columns=0),
    row("b4_some_empty_spans", "no_rows", start=(4, 0, 7, 2), length=(0, 5, 0, 1)),
    row("b3_all_empty_spans", "no_rows all_empty", start=(4, 0, 7), length=0),
    row("b3_empty_span_at_the_end", "no_rows edge", start=(13, 2, 13), length=(0, 11, 0),
        n_columns=0),
    row("b0", "empty_batch", start=(), length=()),
    row("b0_no_table", "empty_batch no_table", blank("req_to_token", 0, 0), start=(), length=()),
    row("b0_spare_slots", "empty_batch capacity_room", start=(), length=(), room=5),
    row("b2_seq_65537", "long_context", start=(65_537, 70_000), length=(9, 2)),
    row("b2_length_100", "long_spans", start=(0, 9), length=(100, 77)),
    row("b3_start_0", "seq_0", start=0, length=(1, 2, 3)),
    row("b3_slot_zero", "slot_0", put("out_cache_loc", ..., 0), **_THREE),
    row("b3_slot_int32_max", "slot_limit", put("out_cache_loc", ..., 2**31 - 1), **_THREE),
    row("b3_rows_descend", "pool_order", put("req_pool_indices", ..., [4, 2, 0]), **_THREE),
    row("b3_shared_row_of_empty_spans", "shared_row no_rows", put("req_pool_indices", ..., 1),
        start=(4, 0, 7), length=(0, 5, 0)),
    row("b3_table_holds_minus_one", "fresh_table", put("req_to_token", ..., -1), **_THREE),
    row("b17_prime_batch", "odd_batch", start=(1, 2, 3), length=(7, 0, 2), batch=17),
    row("b64_length_8", "default", start=(40, 7), length=8, batch=64),
    row("b5_k10_chains", "tree", start=(3, 9), length=10, batch=5, room=1),
    row("span_past_table", "refused table", BOUNDS, put("end", 1, 12), room=9, **_THREE),
    row("start_negative", "refused table negative", BOUNDS, put("start", 1, -1), room=2, **_THREE),
    row("span_of_all_int64", "refused table int64", BOUNDS, put("start", 1, -(2**63)),
        put("end", 1, 2**63 - 1), **_THREE),
    row("end_before_start", "refused table reversed", BOUNDS, put("end", 0, 2), **_THREE),
    row("pool_row_past_table", "refused pool", BOUNDS, put("req_pool_indices", 2, 5), **_THREE),
    row("pool_row_negative", "refused pool negative", BOUNDS, put("req_pool_indices", 0, -1),
        **_THREE),
    row("pool_row_twice", "refused shared_row", DATA, put("req_pool_indices", [0, 2], 3),
        start=(4, 0, 7, 2), length=(3, 5, 1, 2)),
    row("slots_one_short", "refused slots", BOUNDS, room=-1, **_THREE),
    row("slots_none", "refused slots none", BOUNDS, room=-1, start=(4, 0), length=(0, 1)),
    row("table_and_slots_short", "refused table slots", BOUNDS, put("end", 2, 99), **_THREE),
    row("b129", "beyond_batch", BOUNDS, start=0, length=1, batch=129),
    row("table_rows_65537", "beyond_table_rows", BOUNDS, blank("req_to_token", 65_537, 0), start=0,
        length=0),
    row("table_columns_2097153", "beyond_table_columns", BOUNDS,
        blank("req_to_token", 0, 2**21 + 1), start=0, length=0),
    row("end_of_another_batch", "wrong_shape", BOUNDS, blank("end", 2), **_THREE),
    row("table_int64", "wrong_dtype", DTYPE, cast("req_to_token", "int64"), **_THREE),
    row("slots_int64", "wrong_dtype slots", DTYPE, cast("out_cache_loc", "int64"), **_THREE),
)  # fmt: skip

_PER_REQUEST_ROWS = (
    *_SPAN_ROWS,
    row("slot_negative", "refused slot_negative", DATA, put("out_cache_loc", (1, 4), -7), **_THREE),
    row("b3_unused_slot_negative", "unused_slot", put("out_cache_loc", (2, 1), -7), **_THREE),
    row("b3_empty_span_over_negative_slot", "unused_slot no_rows",
        put("out_cache_loc", (0, 0), -7), start=(4, 0, 7), length=(0, 5, 1)),
    row("slots_1025", "beyond_slots", BOUNDS, room=1024, start=0, length=1),
    row("slots_flat", "wrong_shape axes", BOUNDS, blank("out_cache_loc", 9), **_THREE),
)  # fmt: skip

_FLAT_ROWS = (
    *_SPAN_ROWS,
    row("slot_negative", "refused slot_negative", DATA, put("out_cache_loc", 4, -7), **_THREE),
    row("first_slot_negative", "refused slot_negative edge", DATA, put("out_cache_loc", 0, -7),
        **_THREE),
    row("b3_unused_slot_negative", "unused_slot", put("out_cache_loc", 9, -7), room=1, **_THREE),
    row("slots_two_requests_short", "refused slots twice", BOUNDS, room=-2, **_THREE),
    row("share_past_int32", "refused slots huge", BOUNDS, put("end", 1, 2**62), **_THREE),
    row("reversed_span_takes_no_share", "refused table shares", BOUNDS, start=(4, 5, 7),
        length=(3, -2, 1)),
    row("slots_as_table", "wrong_shape axes", BOUNDS, blank("out_cache_loc", 3, 3), **_THREE),
)  # fmt: skip

MEMORY_CASES = (
    *cases(K8, _lists, _LIST_ROWS),
    *cases(K10A, _per_request, _PER_REQUEST_ROWS),
    *cases(K10B, _flat, _FLAT_ROWS),
)
