"""Cards of graph replay: K11 and K12 fill static buffers, K13 lists the active slots."""

from __future__ import annotations

from aerie.kernels.card import Axis, Card, Refusal, Scalar
from aerie.kernels.cards.axes import (
    BATCH,
    BOOL,
    HIDDEN,
    HOST,
    I32,
    I64,
    MAX_BATCH,
    MAX_ROWS,
    STATUS,
    U32,
    cost,
    limit,
    may_update,
    reads,
    returns,
    updates,
)
from aerie.kernels.status import Status

_EACH = ("B",)
_STATIC = ("C",)
_CAPTURED = Axis("C", 1, MAX_BATCH, "requests the static buffers hold")
_WIDE = Axis("H", 0, 1 << 16, "width of a hidden row (several taps side by side)")
_FILL = Scalar("seq_len_fill", "int", 0, 1 << 21, "sequence length of an inert request")
_SEQ_LEN = reads("seq_len", I64, _EACH, "sequence length of each request")
_POOL_ROW = reads("req_pool_indices", I64, _EACH, "table row of each request")
_STATIC_SEQ_LEN = updates("static_seq_len", I64, _STATIC, "padding: seq_len_fill")
_STATIC_POOL_ROW = updates("static_req_pool_indices", I64, _STATIC, "padding: 0")

DRAFT_REPLAY = Card(
    number="K11",
    name="draft_replay_input_operator",
    family="replay",
    version=1,
    summary=(
        "Copy one draft level into the static buffers of the smallest captured bucket that holds"
        " the batch. Padding requests are inert: sequence length seq_len_fill, slot 0, position 0,"
        " token 0, hidden 0, table row 0. Entries beyond the bucket are not touched."
    ),
    axes=(BATCH, _CAPTURED, _WIDE),
    scalars=(
        Scalar("tree_width", "int", 1, 10, "rows of each request"),
        Scalar("buckets", "ints", 1, MAX_BATCH, "captured batch sizes, ascending"),
        _FILL,
    ),
    ports=(
        reads("input_ids", I64, ("B*tree_width",), "token of each row"),
        reads("positions", I64, ("B*tree_width",), "position of each row"),
        reads("out_cache_loc", I32, ("B*tree_width",), "KV slot each row writes"),
        reads("hidden", HIDDEN, ("B*tree_width", "H"), "hidden row"),
        _SEQ_LEN,
        _POOL_ROW,
        updates("static_input_ids", I64, ("C*tree_width",), "padding: 0"),
        updates("static_positions", I64, ("C*tree_width",), "padding: 0"),
        updates("static_out_cache_loc", I32, ("C*tree_width",), "padding: slot 0"),
        updates("static_hidden", HIDDEN, ("C*tree_width", "H"), "padding: 0"),
        _STATIC_SEQ_LEN,
        _STATIC_POOL_ROW,
        returns("bucket", HOST, (), "requests of the bucket that was filled"),
    ),
    limits=(
        limit("B", "largest_buckets", "requests of the largest captured bucket"),
        limit("largest_buckets", "C", "requests the static buffers hold"),
    ),
    ties="None: copies.",
    cost=cost(
        "B*(tree_width*(20 + E*H) + 16)", "C*(tree_width*(20 + E*H) + 16) + 4", "C*tree_width"
    ),
)

EXTEND_REPLAY = Card(
    number="K12",
    name="extend_replay_input_operator",
    family="replay",
    version=1,
    summary=(
        "Copy a ragged extend batch into the static buffers of the smallest captured (batch, rows)"
        " bucket that holds it. Padding requests are inert: extend length 1, sequence length"
        " seq_len_fill, table row 0; their rows, and rows of no request, hold token 0, position 0,"
        " slot 0, hidden 0. static_qo_indptr covers padding requests. Entries beyond the buckets"
        " are not touched. If any request is refused nothing is written."
    ),
    axes=(
        BATCH,
        Axis("R", 0, MAX_ROWS, "rows of the batch"),
        _CAPTURED,
        Axis("T", 1, MAX_ROWS + MAX_BATCH, "rows the static buffers hold"),
        _WIDE,
    ),
    scalars=(
        Scalar("batch_buckets", "ints", 1, MAX_BATCH, "captured batch sizes, ascending"),
        Scalar("row_buckets", "ints", 1, MAX_ROWS + MAX_BATCH, "captured row counts, ascending"),
        _FILL,
    ),
    ports=(
        reads("input_ids", I64, ("R",), "token of each row"),
        reads("positions", I64, ("R",), "position of each row"),
        reads("out_cache_loc", I32, ("R",), "KV slot each row writes"),
        reads("hidden", HIDDEN, ("R", "H"), "target features of each row"),
        reads("extend_len", I64, _EACH, "rows of each request, at least 1; summed modulo 2^64"),
        _SEQ_LEN,
        _POOL_ROW,
        updates("static_input_ids", I64, ("T",), "padding: 0"),
        updates("static_positions", I64, ("T",), "padding: 0"),
        updates("static_out_cache_loc", I32, ("T",), "padding: slot 0"),
        updates("static_hidden", HIDDEN, ("T", "H"), "padding: 0"),
        updates("static_extend_len", I64, _STATIC, "padding: 1"),
        _STATIC_SEQ_LEN,
        _STATIC_POOL_ROW,
        updates("static_qo_indptr", I32, ("C+1",), "first row of each request"),
        returns("bucket", HOST, (), "requests of the bucket that was filled"),
        returns("row_bucket", HOST, (), "rows of the bucket that was filled"),
        STATUS,
    ),
    limits=(
        limit("min(R, 1)", "B", "rows that belong to no request"),
        limit("B", "largest_batch_buckets", "requests of the largest captured bucket"),
        limit("largest_batch_buckets", "C", "requests the static buffers hold"),
        limit(
            "R + chosen_batch_buckets - B",
            "largest_row_buckets",
            "rows of the largest captured bucket, one per padding request included",
        ),
        limit("largest_row_buckets", "T", "rows the static buffers hold"),
    ),
    refusals=(
        Refusal(Status.OUT_OF_RANGE, "R", "extend_len outside [1, R]"),
        Refusal(Status.BROKEN_LAYOUT, "R", "the extend lengths do not add up to the rows"),
    ),
    ties="None: copies.",
    cost=cost("R*(20 + E*H) + 24*B", "T*(20 + E*H) + 28*C", "T"),
)

ACTIVE_SLOTS = Card(
    number="K13",
    name="build_active_slots",
    family="replay",
    version=1,
    summary=(
        "List the slots that still decode: not finished, seq_len below length_limit, not ended by"
        " EOS; ascending. Dead slots get accepted length 0, draft tokens -1 and an empty mask in"
        " whichever of those arrays are given."
    ),
    axes=(
        Axis("S", 0, 1024, "slots of the engine"),
        Axis("T", 1, 128, "rows per slot"),
    ),
    ports=(
        reads("finished", BOOL, ("S",), "the request has ended"),
        reads("seq_len", I64, ("S",), "sequence length"),
        reads("length_limit", I64, ("S",), "length at which a request ends"),
        reads("eos_terminated", BOOL, ("S",), "the request emitted EOS"),
        may_update("accept_count", I64, ("S",), "dead slots: 0"),
        may_update("draft_tokens", I64, ("S", "T"), "dead slots: -1"),
        may_update("ancestor_bits", U32, ("S", "T", "4"), "dead slots: 0"),
        returns("active_slots", I32, ("S",), "active slots, packed to the front", -1),
        returns("active_inverse", I32, ("S",), "index in active_slots, or -1", -1),
        returns("active_count", I32, ("1",), "how many"),
    ),
    ties="None: integers.",
    cost=cost("18*S", "8*S + 4", "4*S"),
)

REPLAY_CARDS = (DRAFT_REPLAY, EXTEND_REPLAY, ACTIVE_SLOTS)
