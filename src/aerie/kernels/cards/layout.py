"""Cards of the verify layout: K10c rows and links, K4 packed masks, K9 offsets."""

from __future__ import annotations

from aerie.kernels.card import Call, Card, Refusal
from aerie.kernels.cards.axes import (
    BATCH,
    INT32_MAX,
    MAX_ROWS,
    MAX_VERIFY,
    NODES,
    ROWS,
    TABLE_ROWS,
    TABLE_WIDTH,
)
from aerie.kernels.cards.dtypes import BOOL, EACH, I32, I64, INDPTR, STORE, U8, U32
from aerie.kernels.cards.fields import POOL_ROW, STATUS, TABLE, cost, reads, returns, scalar
from aerie.kernels.cards.refusals import BROKEN_LAYOUT, MANY_ROWS, NEGATIVE_LENGTH, OF_TABLE
from aerie.kernels.status import Status

# An error names an overflow up to here; how far beyond does not matter.
LARGEST_NAMED = 1 << 40

_ROW = ("row_capacity",)


class NodeData(Call, number="K10c", name="update_node_data", family="layout"):
    """From the node store and the planner's choice, the flat ragged rows the target verifies:
    ascending node id inside a request, links as rows within the request, derived from prev_indexs
    alone. ancestor_bits[row] has bit j set when row j of the same request is the row itself or an
    ancestor; word j div 32, bit j mod 32. A refused request gets no rows.
    """

    row_capacity = scalar("int", 0, MAX_ROWS, "rows of the output buffers")
    cumu_tokens = reads(I64, STORE, "token of each node")
    cumu_deltas = reads(I64, STORE, "depth of each node")
    prev_indexs = reads(I64, STORE, "parent of each node, -1 for the root")
    node_count = reads(I64, EACH, "nodes in use; may differ after merging")
    selected = reads(BOOL, STORE, "ancestor-closed choice that contains node 0")
    seq_len = reads(I64, EACH, "tokens with KV in the target, root excluded")
    qo_indptr = returns(I32, INDPTR, "first row of each request")
    draft_tokens = returns(I64, _ROW, "token of each row", -1)
    positions = returns(I64, _ROW, "seq_len + depth, wrapping around int64")
    parent_row = returns(I64, _ROW, "row of the parent, -1 for the root", -1)
    first_child_row = returns(I64, _ROW, "row of the first child", -1)
    next_sibling_row = returns(I64, _ROW, "row of the next sibling", -1)
    ancestor_bits = returns(U32, ("row_capacity", "4"), "ancestor-or-self, 128 bits")
    status = STATUS
    card = Card(
        axes=(BATCH, NODES),
        refusals=(
            Refusal(Status.OUT_OF_RANGE, "N", "node_count outside [1, N]"),
            NEGATIVE_LENGTH,
            Refusal(Status.BROKEN_TREE, "0", "no root, an id not in use, or a parent left out"),
            Refusal(Status.DUPLICATE_SIBLING, "1", "two selected siblings share a token"),
            MANY_ROWS,
            Refusal(
                Status.SLOT_CAPACITY,
                "row_capacity",
                "the rows of this and earlier requests pass row_capacity",
            ),
        ),
        ties="Rows follow node ids, so siblings keep their probability order.",
        cost=cost("B*N*25 + 16*B", "4*(B+1) + row_capacity*56", "B*N + row_capacity*128"),
    )


class TreeMask(Call, number="K4", name="fused_tree_mask_operator", family="layout"):
    """KV slot lists (prefix, then the request's own tree rows, both from the table row [0, seq_len
    + rows)) and the visibility of every (row, column) packed to bits: prefix columns visible, tree
    columns by ancestor_bits. Little-endian bits, each request starts on a fresh byte,
    ceil(rows*columns/8) bytes, rows inside a segment not byte-aligned, pad bits 0. Attention on a
    host reads it; on a GPU it reads ancestor_bits themselves.
    """

    kv_capacity = scalar("int", 0, INT32_MAX, "entries of kv_indices")
    mask_capacity = scalar("int", 0, INT32_MAX, "bytes of packed_mask")
    req_to_token = TABLE
    req_pool_indices = POOL_ROW
    seq_len = reads(I64, EACH, "prefix length of each request")
    qo_indptr = reads(I32, INDPTR, "first row of each request")
    ancestor_bits = reads(U32, ("R", "4"), "from K10c")
    kv_indptr = returns(I32, INDPTR, "first entry of each request in kv_indices")
    kv_indices = returns(I32, ("kv_capacity",), "KV slots: prefix, then tree", -1)
    mask_indptr = returns(I32, INDPTR, "first byte of each request in packed_mask")
    packed_mask = returns(U8, ("mask_capacity",), "visibility bits")
    status = STATUS
    card = Card(
        axes=(BATCH, ROWS, TABLE_ROWS, TABLE_WIDTH),
        refusals=(
            BROKEN_LAYOUT,
            MANY_ROWS,
            *OF_TABLE,
            Refusal(Status.KV_CAPACITY, "kv_capacity", "slot lists up to here do not fit"),
            Refusal(Status.MASK_CAPACITY, "mask_capacity", "mask bytes up to here do not fit"),
        ),
        ties="None: integers and bits.",
        cost=cost(
            "4*kv_capacity + 16*R + 20*B",
            "4*kv_capacity + mask_capacity + 8*(B+1)",
            "8*mask_capacity",
        ),
    )


class VerifyOffsets(Call, number="K9", name="calculate_verify_kv_qo_ms", family="layout"):
    """Running offsets of a verify batch: rows, KV entries (seq_len + rows) and mask bytes
    (ceil(rows * columns / 8)) of each request. int32 with an overflow check: a request whose end
    passes int32 in any of the three is refused, and so is every later one; refused requests get no
    rows.
    """

    verify_count = reads(I64, EACH, "rows of each request")
    seq_len = reads(I64, EACH, "prefix length of each request")
    qo_indptr = returns(I32, INDPTR, "first row of each request")
    kv_indptr = returns(I32, INDPTR, "first KV entry of each request")
    mask_indptr = returns(I32, INDPTR, "first mask byte of each request")
    status = STATUS
    card = Card(
        axes=(BATCH,),
        refusals=(
            Refusal(Status.OUT_OF_RANGE, str(MAX_VERIFY), "verify_count outside [0, 128]"),
            NEGATIVE_LENGTH,
            Refusal(Status.OVERFLOW, str(INT32_MAX), "an offset passes int32"),
        ),
        cost=cost("16*B", "12*(B+1)", "12*B"),
    )
