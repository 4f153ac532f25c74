"""Cards of the fused tops: a draft tree's levels and layout, then its verdict and commit.

They are no kernels of the catalogue: no backend but this one has them, and the host calls them in
place of K1 to K7. What one leaves on chip the next one finds there, so a round is two calls.
"""

from __future__ import annotations

from aerie.kernels.card import Axis, Card, Refusal
from aerie.kernels.cards.axes import (
    BATCH,
    INT32_MAX,
    MAX_ROWS,
    MAX_VERIFY,
    ROWS,
    STOPS,
    TABLE_ROWS,
    TABLE_WIDTH,
    TOP_K,
    VOCAB,
    WIDTH,
)
from aerie.kernels.cards.commit import VerifyResult
from aerie.kernels.cards.dtypes import EACH, F32, I32, I64, INDPTR, U8, U32
from aerie.kernels.cards.fields import (
    POOL_ROW,
    STATUS,
    TABLE,
    cost,
    fields,
    limit,
    may_read,
    reads,
    returns,
    scalar,
)
from aerie.kernels.cards.refusals import MANY_ROWS, NEGATIVE_LENGTH, NO_SUCH_ROW, OF_TABLE
from aerie.kernels.hls.limits import MAX_CANDIDATES
from aerie.kernels.status import Status

MAX_LEVELS = 32
# Nodes of one request that the chip holds: 16 levels of 64 candidates.
FUSED_NODES = 1024

_LEVELS = ("D", "B", "W*K")
_ROW = ("row_capacity",)
_NO_COST = cost("0", "0", "0")

FUSED_GROWTH = Card(
    call=fields(
        "F1",
        "fused_growth",
        "fused",
        "K1, K2, K3 and the gather of the next frontier, level after level, then the best"
        " verify_num nodes as rows (K10c) with their slot lists and packed masks (K4), in one"
        " region. Scores, links, running order and masks stay on chip. A frontier slot that"
        " proposes one token twice refuses its request for the round.",
        K=scalar("int", TOP_K.low, TOP_K.high, TOP_K.meaning),
        verify_num=scalar("int", 1, MAX_VERIFY, "rows of a request, root included"),
        row_capacity=scalar("int", 0, MAX_ROWS, "rows of the output buffers"),
        kv_capacity=scalar("int", 0, INT32_MAX, "entries of kv_indices"),
        mask_capacity=scalar("int", 0, INT32_MAX, "bytes of packed_mask"),
        widths=reads(I32, ("D",), "frontier slots of each level; the first has one"),
        level_probas=reads(F32, _LEVELS, "draft probabilities, widths[d]*K of each level"),
        level_tokens=reads(I64, _LEVELS, "candidate tokens, target ids"),
        root_tokens=reads(I64, EACH, "last committed token of each request"),
        seq_len=reads(I64, EACH, "tokens with KV in the target, root excluded"),
        req_to_token=TABLE,
        req_pool_indices=POOL_ROW,
        G=returns(F32, ("D", "K + 1"), "K3's gains of each level"),
        qo_indptr=returns(I32, ("B + 1",), "first row of each request"),
        draft_tokens=returns(I64, _ROW, "token of each row", -1),
        positions=returns(I64, _ROW, "seq_len + depth"),
        ancestor_bits=returns(U32, ("row_capacity", "4"), "ancestor-or-self, 128 bits"),
        kv_indptr=returns(I32, ("B + 1",), "first entry of each request in kv_indices"),
        kv_indices=returns(I32, ("kv_capacity",), "KV slots: prefix, then tree", -1),
        mask_indptr=returns(I32, ("B + 1",), "first byte of each request in packed_mask"),
        packed_mask=returns(U8, ("mask_capacity",), "visibility bits"),
        status=STATUS,
    ),
    axes=(
        BATCH,
        Axis("D", 1, MAX_LEVELS, "levels"),
        WIDTH,
        TABLE_ROWS,
        TABLE_WIDTH,
    ),
    limits=(
        limit("W*K", str(MAX_CANDIDATES), "candidates the sorter holds"),
        limit("1 + D*W*K", str(FUSED_NODES), "nodes the chip holds"),
    ),
    refusals=(
        Refusal(Status.DUPLICATE_SIBLING, "1", "a frontier slot proposes one token twice"),
        Refusal(Status.SLOT_CAPACITY, "row_capacity", "rows up to here do not fit"),
        *OF_TABLE,
        Refusal(Status.KV_CAPACITY, "kv_capacity", "slot lists up to here do not fit"),
        Refusal(Status.MASK_CAPACITY, "mask_capacity", "mask bytes up to here do not fit"),
    ),
    ties="As K1 and K2: the lower id wins.",
    cost=_NO_COST,
)

FUSED_VERDICT = Card(
    call=fields(
        "F2",
        "fused_verdict",
        "fused",
        "K5, K6 and K7 in one region: every row of target logits is read once, the walk takes its"
        " step while the row is on chip, and the commit follows from the path. Without coins the"
        " walk follows the argmax of each row (greedy requests only). Rows come from fused_growth's"
        " chip state, or from the layout's arrays where they are given. A request that any of the"
        " three would refuse emits nothing and keeps its length.",
        D=scalar("int", 0, 127, "depth limit of the tree"),
        logits=reads(F32, ("R", "V"), "target logits; -inf masks a token"),
        temperature=reads(F32, EACH, "0 is greedy"),
        coins=may_read(F32, ("B", "D+2"), "uniforms in [0, 1), the last for the bonus"),
        qo_indptr=may_read(I32, INDPTR, "first row of each request"),
        draft_tokens=may_read(I64, ("R",), "token of each row"),
        first_child_row=may_read(I64, ("R",), "row within the request, -1 for none"),
        next_sibling_row=may_read(I64, ("R",), "row within the request, -1 for none"),
        seq_len=reads(I64, EACH, "tokens with KV in the target, root excluded"),
        length_limit=reads(I64, EACH, "most tokens the request may hold"),
        stop_tokens=reads(I64, ("B", "S"), "stop ids, -1 for none"),
        req_to_token=TABLE,
        req_pool_indices=POOL_ROW,
        **{port.name: port for port in VerifyResult.card.outputs},
    ),
    axes=(BATCH, ROWS, VOCAB, STOPS, TABLE_ROWS, TABLE_WIDTH),
    companions=(("qo_indptr", "draft_tokens", "first_child_row", "next_sibling_row"),),
    refusals=(
        Refusal(Status.BROKEN_LAYOUT, "R", "qo_indptr falls, or passes the rows"),
        MANY_ROWS,
        Refusal(Status.BROKEN_TREE, "R", "links do not form one tree, all pointing forward"),
        Refusal(Status.DUPLICATE_SIBLING, "1", "two siblings share a token"),
        Refusal(Status.OUT_OF_RANGE, "V", "a draft token outside the vocabulary, or the table"),
        Refusal(Status.BAD_PARAMETER, "0", "temperature, or a coin, out of range"),
        Refusal(Status.NOT_FINITE, "0", "NaN or +inf in a row"),
        Refusal(Status.ALL_MASKED, "1", "a row of -inf alone"),
        Refusal(Status.TOO_DEEP, "D", "the walk reaches a node below D"),
        NO_SUCH_ROW,
        NEGATIVE_LENGTH,
    ),
    ties="As K5, K6 and K7.",
    cost=_NO_COST,
)

FUSED_CARDS: tuple[Card, ...] = (FUSED_GROWTH, FUSED_VERDICT)
