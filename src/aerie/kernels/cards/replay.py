"""Cards of graph replay: K11 and K12 fill static buffers, K13 lists the active slots."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card, Refusal
from aerie.kernels.cards.axes import BATCH, MAX_BATCH, MAX_ROWS
from aerie.kernels.cards.dtypes import BOOL, EACH, HIDDEN, HOST, I32, I64, U32
from aerie.kernels.cards.fields import (
    POOL_ROW,
    STATUS,
    cost,
    limit,
    may_update,
    reads,
    returns,
    scalar,
    updates,
)
from aerie.kernels.status import Status

# Arrays of rows that K11 and K12 copy, each to the one whose name begins with `static_`.
ROW_ARRAYS = ("input_ids", "positions", "out_cache_loc", "hidden")

_STATIC = ("C",)
_CAPTURED = Axis("C", 1, MAX_BATCH, "requests the static buffers hold")
_WIDE = Axis("H", 0, 1 << 16, "width of a hidden row (several taps side by side)")
_FILL = scalar("int", 0, 1 << 21, "sequence length of an inert request")
_SEQ_LEN = reads(I64, EACH, "sequence length of each request")
_STATIC_SEQ_LEN = updates(I64, _STATIC, "padding: seq_len_fill")
_STATIC_POOL_ROW = updates(I64, _STATIC, "padding: 0")


class DraftReplay(Call, number="K11", name="draft_replay_input_operator", family="replay"):
    """Copy one draft level into the static buffers of the smallest captured bucket that holds the
    batch. Padding requests are inert: sequence length seq_len_fill, slot 0, position 0, token 0,
    hidden 0, table row 0. Entries beyond the bucket are not touched.
    """

    tree_width = scalar("int", 1, 10, "rows of each request")
    buckets = scalar("ints", 1, MAX_BATCH, "captured batch sizes, ascending")
    seq_len_fill = _FILL
    input_ids = reads(I64, ("B*tree_width",), "token of each row")
    positions = reads(I64, ("B*tree_width",), "position of each row")
    out_cache_loc = reads(I32, ("B*tree_width",), "KV slot each row writes")
    hidden = reads(HIDDEN, ("B*tree_width", "H"), "hidden row")
    seq_len = _SEQ_LEN
    req_pool_indices = POOL_ROW
    static_input_ids = updates(I64, ("C*tree_width",), "padding: 0")
    static_positions = updates(I64, ("C*tree_width",), "padding: 0")
    static_out_cache_loc = updates(I32, ("C*tree_width",), "padding: slot 0")
    static_hidden = updates(HIDDEN, ("C*tree_width", "H"), "padding: 0")
    static_seq_len = _STATIC_SEQ_LEN
    static_req_pool_indices = _STATIC_POOL_ROW
    bucket = returns(HOST, (), "requests of the bucket that was filled")
    card = Card(
        axes=(BATCH, _CAPTURED, _WIDE),
        limits=(
            limit("B", "largest_buckets", "requests of the largest captured bucket"),
            limit("largest_buckets", "C", "requests the static buffers hold"),
        ),
        ties="None: copies.",
        cost=cost(
            "B*(tree_width*(20 + E*H) + 16)", "C*(tree_width*(20 + E*H) + 16) + 4", "C*tree_width"
        ),
    )


class ExtendReplay(Call, number="K12", name="extend_replay_input_operator", family="replay"):
    """Copy a ragged extend batch into the static buffers of the smallest captured (batch, rows)
    bucket that holds it. Padding requests are inert: extend length 1, sequence length seq_len_fill,
    table row 0; their rows, and rows of no request, hold token 0, position 0, slot 0, hidden 0.
    static_qo_indptr covers padding requests. Entries beyond the buckets are not touched. If any
    request is refused nothing is written.
    """

    batch_buckets = scalar("ints", 1, MAX_BATCH, "captured batch sizes, ascending")
    row_buckets = scalar("ints", 1, MAX_ROWS + MAX_BATCH, "captured row counts, ascending")
    seq_len_fill = _FILL
    input_ids = reads(I64, ("R",), "token of each row")
    positions = reads(I64, ("R",), "position of each row")
    out_cache_loc = reads(I32, ("R",), "KV slot each row writes")
    hidden = reads(HIDDEN, ("R", "H"), "target features of each row")
    extend_len = reads(I64, EACH, "rows of each request, at least 1; summed modulo 2^64")
    seq_len = _SEQ_LEN
    req_pool_indices = POOL_ROW
    static_input_ids = updates(I64, ("T",), "padding: 0")
    static_positions = updates(I64, ("T",), "padding: 0")
    static_out_cache_loc = updates(I32, ("T",), "padding: slot 0")
    static_hidden = updates(HIDDEN, ("T", "H"), "padding: 0")
    static_extend_len = updates(I64, _STATIC, "padding: 1")
    static_seq_len = _STATIC_SEQ_LEN
    static_req_pool_indices = _STATIC_POOL_ROW
    static_qo_indptr = updates(I32, ("C+1",), "first row of each request")
    bucket = returns(HOST, (), "requests of the bucket that was filled")
    row_bucket = returns(HOST, (), "rows of the bucket that was filled")
    status = STATUS
    card = Card(
        axes=(
            BATCH,
            Axis("R", 0, MAX_ROWS, "rows of the batch"),
            _CAPTURED,
            Axis("T", 1, MAX_ROWS + MAX_BATCH, "rows the static buffers hold"),
            _WIDE,
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


class ActiveSlots(Call, number="K13", name="build_active_slots", family="replay"):
    """List the slots that still decode: not finished, seq_len below length_limit, not ended by EOS;
    ascending. Dead slots get accepted length 0, draft tokens -1 and an empty mask in whichever of
    those arrays are given.
    """

    finished = reads(BOOL, ("S",), "the request has ended")
    seq_len = reads(I64, ("S",), "sequence length")
    length_limit = reads(I64, ("S",), "length at which a request ends")
    eos_terminated = reads(BOOL, ("S",), "the request emitted EOS")
    accept_count = may_update(I64, ("S",), "dead slots: 0")
    draft_tokens = may_update(I64, ("S", "T"), "dead slots: -1")
    ancestor_bits = may_update(U32, ("S", "T", "4"), "dead slots: 0")
    active_slots = returns(I32, ("S",), "active slots, packed to the front", -1)
    active_inverse = returns(I32, ("S",), "index in active_slots, or -1", -1)
    active_count = returns(I32, ("1",), "how many")
    card = Card(
        axes=(
            Axis("S", 0, 1024, "slots of the engine"),
            Axis("T", 1, 128, "rows per slot"),
        ),
        cost=cost("18*S", "8*S + 4", "4*S"),
    )
