"""Cards of the memory kernels: K8 slot lists, K10a and K10b slot assignment."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card, Refusal
from aerie.kernels.cards.axes import BATCH, FED, INT32_MAX, TABLE_ROWS, TABLE_WIDTH, WIDTH
from aerie.kernels.cards.dtypes import BOOL, EACH, I32, I64
from aerie.kernels.cards.fields import (
    POOL_ROW,
    STATUS,
    TABLE,
    cost,
    may_read,
    reads,
    returns,
    scalar,
    updates,
)
from aerie.kernels.cards.refusals import NEGATIVE_LENGTH, NO_SUCH_ROW
from aerie.kernels.status import Status

_TABLE = ("P", "L")
_WRITE_REFUSALS = (
    NO_SUCH_ROW,
    Refusal(Status.OUT_OF_RANGE, "L", "[start, end) outside the table"),
    Refusal(Status.DUPLICATE_REQUEST, "1", "another request writes the same table row"),
)
_NEGATIVE_SLOT = Refusal(Status.BROKEN_LAYOUT, "0", "a slot to write is negative; value = the slot")


class KvIndices(Call, number="K8", name="compute_kv_indices", family="memory"):
    """KV slot lists for attention. Plain: one list per request, its first seq_len slots. Draft
    variant (tree_mask and fed_slots given): one list per (request, frontier slot), the prefix
    followed by the fed nodes its mask row shows, in fed order: its own ancestor chain, never a
    sibling or a cousin. A refused request's lists are empty.
    """

    kv_capacity = scalar("int", 0, INT32_MAX, "entries of kv_indices")
    req_to_token = TABLE
    req_pool_indices = POOL_ROW
    seq_len = reads(I64, EACH, "prefix length of each request")
    tree_mask = may_read(BOOL, ("B", "W", "F"), "fed nodes each frontier slot sees")
    fed_slots = may_read(I32, ("B", "F"), "draft KV slot of each fed node")
    kv_indptr = returns(I32, ("B*W + 1",), "first entry of each list")
    kv_indices = returns(I32, ("kv_capacity",), "KV slots", -1)
    status = STATUS
    card = Card(
        axes=(BATCH, WIDTH, FED, TABLE_ROWS, TABLE_WIDTH),
        companions=(("tree_mask", "fed_slots"),),
        defaults={"W": 1, "F": 1},
        refusals=(
            NO_SUCH_ROW,
            NEGATIVE_LENGTH,
            Refusal(Status.OUT_OF_RANGE, "L", "seq_len passes the table"),
            Refusal(Status.KV_CAPACITY, "kv_capacity", "slot lists up to here do not fit"),
        ),
        cost=cost(
            "4*kv_capacity + 16*B + B*W*F", "4*kv_capacity + 4*(B*W + 1)", "kv_capacity + B*W*F"
        ),
    )


class WrittenSpans(Call):
    """Where K10a and K10b write."""

    req_to_token = updates(I32, _TABLE, "request-to-slot table")
    req_pool_indices = POOL_ROW
    start = reads(I64, EACH, "first position to write")
    end = reads(I64, EACH, "one past the last position")


class DraftCacheLocs(
    WrittenSpans, number="K10a", name="assign_draft_cache_locs_operator", family="memory"
):
    """Write freshly allocated draft slots into the request-to-slot table for [start, end) of each
    request; request b takes the first end - start entries of row b of out_cache_loc.
    """

    out_cache_loc = reads(I32, ("B", "T"), "slots of each request")
    status = STATUS
    card = Card(
        axes=(BATCH, TABLE_ROWS, TABLE_WIDTH, Axis("T", 0, 1024, "slots given per request")),
        refusals=(
            *_WRITE_REFUSALS,
            Refusal(Status.SLOT_CAPACITY, "T", "end - start exceeds the slots given"),
            _NEGATIVE_SLOT,
        ),
        cost=cost("B*(24 + 4*T)", "4*B*T + 4*B", "B*T"),
    )


class TokenPool(
    WrittenSpans, number="K10b", name="assign_req_to_token_pool_operator", family="memory"
):
    """Write freshly allocated slots into the request-to-slot table for [start, end) of each
    request; out_cache_loc is flat, and request b takes its share after the shares max(end - start,
    0) of all requests before it, refused ones included. Neither differences nor sums of them wrap.
    """

    out_cache_loc = reads(I32, ("C",), "slots of all requests, in request order")
    status = STATUS
    card = Card(
        axes=(BATCH, TABLE_ROWS, TABLE_WIDTH, Axis("C", 0, 1 << 24, "slots given in all")),
        refusals=(
            *_WRITE_REFUSALS,
            Refusal(Status.SLOT_CAPACITY, "C", "the shares up to here exceed the slots given"),
            _NEGATIVE_SLOT,
        ),
        cost=cost("24*B + 4*C", "4*C + 4*B", "C"),
    )
