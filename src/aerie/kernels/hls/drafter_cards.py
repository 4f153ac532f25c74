"""Cards of a draft head: kernel by kernel, and as one region from features to a laid-out tree.

Weights of 4 bits are flat arrays of bytes, two numbers a byte, and of 16-bit scales, one a group of
128 (32 for a sketch of the head). The fused region takes the down projection in tiles of 128
columns, so that the wide row between the products never exists whole (`aerie fpga pack`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aerie.kernels.card import Axis, Card
from aerie.kernels.cards.axes import BATCH, MAX_VERIFY, TABLE_ROWS, TABLE_WIDTH
from aerie.kernels.cards.dtypes import BOOL, EACH, F32, I32, I64, INDPTR, U8
from aerie.kernels.cards.fields import (
    POOL_ROW,
    TABLE,
    cost,
    fields,
    may_read,
    reads,
    returns,
    scalar,
    updates,
)

F16 = ("float16",)
MAX_DRAFT_ROWS = 256
MAX_DRAFT_WIDTH = 20480
MAX_GROUP = 128
MAX_HEADS = 64
MAX_HEAD_DIM = 128
MAX_TOP = 256  # candidates of a row that are scored again
RESIDENT_BYTES = 1 << 26  # of one half of the attention block

ROWS = Axis("R", 1, MAX_DRAFT_ROWS, "rows, all requests together")
HIDDEN = Axis("H", 32, 8192, "hidden size, a multiple of 32")
_INPUT = Axis("I", 32, MAX_DRAFT_WIDTH, "width of a row going in, a multiple of 32")
_OUTPUT = Axis("O", 1, 1 << 18, "width of a row coming out")
KEY = Axis("C", 32, 8192, "width of all keys, and of all values")
_VOCAB = Axis("V", 1, 1 << 18, "draft vocabulary")
EMBEDDED = Axis("VT", 1, 1 << 18, "tokens of the embedding")
SLOTS = Axis("S", 1, 1 << 24, "slots of the draft's cache")
ANGLES = Axis("NP", 1, 1 << 21, "positions of the angle tables")
HALF = Axis("HD", 16, MAX_HEAD_DIM // 2, "angles of a head")
_HEAD_DIM = scalar("int", 32, MAX_HEAD_DIM, "width of a head, a multiple of 32")
WINDOW = scalar("int", 0, 1 << 21, "positions a row looks back at, 0: all")
ONE = ("1",)
FREE = cost("0", "0", "0")


def any_size(name: str, meaning: str) -> Axis:
    return Axis(name, 1, (1 << 31) - 1, meaning)


def q4_weight(
    name: str, n_bytes: str, n_scales: str, declare: Callable[..., Any] = reads
) -> dict[str, Any]:
    """A 4-bit weight and its scales, flat, by name."""
    return {
        name: declare(U8, (n_bytes,), "two numbers a byte, the lower first"),
        f"{name}_scale": declare(F16, (n_scales,), "one a group"),
    }


def _op(name: str, axes: tuple[Axis, ...], summary: str, **named: Any) -> Card:
    call = fields("D", name, "drafter", summary, **named)
    return Card(axes, FREE, call, "None.")


DRAFTER_CARDS: tuple[Card, ...] = (
    _op(
        "draft_embed_rows",
        (ROWS, HIDDEN, EMBEDDED),
        "Embedding rows of tokens.",
        tokens=reads(I64, ("R",), "token of each row"),
        embedding=reads(F16, ("VT", "H"), "one row a token"),
        rows=returns(F16, ("R", "H"), "its embedding"),
    ),
    _op(
        "draft_linear_half",
        (ROWS, _INPUT, _OUTPUT),
        "Rows times a 16-bit weight; sums in float32, groups of 128 in order.",
        x=reads(F16, ("R", "I"), "rows"),
        weight=reads(F16, ("O", "I"), "one row an output"),
        y=returns(F16, ("R", "O"), "products"),
    ),
    _op(
        "draft_linear_q4",
        (ROWS, _INPUT, any_size("NW", "bytes of the weight"), any_size("NS", "its scales")),
        "Rows times a 4-bit weight: (number - 8) * scale of its group of 128.",
        x=reads(F16, ("R", "I"), "rows"),
        **q4_weight("weight", "NW", "NS"),
        y=returns(F16, ("R", "O"), "products"),
        O=scalar("int", 1, 1 << 18, "width of a row coming out"),
    ),
    _op(
        "draft_logits",
        (ROWS, HIDDEN, _VOCAB),
        "The whole head in 16 bits, logits to memory.",
        x=reads(F16, ("R", "H"), "normed rows"),
        weight=reads(F16, ("V", "H"), "one row a token"),
        logits=returns(F32, ("R", "V"), "products, float32"),
    ),
    _op(
        "draft_join_norms",
        (ROWS, HIDDEN),
        "The embedding and the hidden state of each row side by side, each normed.",
        embedded=reads(F16, ("R", "H"), "embedding rows"),
        hidden=reads(F16, ("R", "H"), "hidden states"),
        embedding_norm=reads(F32, ("H",), "weight of the norm"),
        hidden_norm=reads(F32, ("H",), "weight of the norm"),
        eps=reads(F32, ONE, "of both"),
        joined=returns(F16, ("R", "2*H"), "side by side"),
    ),
    _op(
        "draft_add_norm",
        (ROWS, HIDDEN),
        "The residual stream after an addition, and its norm.",
        residual=reads(F16, ("R", "H"), "the stream"),
        added=reads(F16, ("R", "H"), "what is added"),
        norm=reads(F32, ("H",), "weight of the norm"),
        eps=reads(F32, ONE, "of the norm"),
        total=returns(F16, ("R", "H"), "their sum"),
        normed=returns(F16, ("R", "H"), "its norm"),
    ),
    _op(
        "draft_gate",
        (ROWS, any_size("GU", "both halves")),
        "silu of the first half of a row times its second.",
        gate_up=reads(F16, ("R", "GU"), "both halves"),
        gated=returns(F16, ("R", "GU // 2"), "their product"),
    ),
    _op(
        "draft_rotate_store",
        (ROWS, KEY, SLOTS, ANGLES, HALF, any_size("NQ", "width of a projected row")),
        "Rotate queries and keys by position; keys and values go to their slots.",
        qkv=reads(F16, ("R", "NQ"), "queries, keys, values"),
        positions=reads(I64, ("R",), "position of each row"),
        slots=reads(I32, ("R",), "slot of each row"),
        cosines=reads(F32, ("NP", "HD"), "by position"),
        sines=reads(F32, ("NP", "HD"), "by position"),
        keys=updates(F16, ("S", "C"), "the draft's keys"),
        values=updates(F16, ("S", "C"), "the draft's values"),
        queries=returns(F16, ("R", "NQ - 2*C"), "rotated"),
    ),
    _op(
        "draft_attend",
        (BATCH, ROWS, KEY, SLOTS, Axis("F", 1, MAX_VERIFY, "columns of the mask"), TABLE_ROWS,
         TABLE_WIDTH, any_size("Q", "width of all queries")),
        "Attention of ragged rows over the columns of each request's table row: the prefix"
        " within the window, then nodes the draft has fed, by a mask. A key and value is read"
        " once for all rows of its request. Without a mask a row sees the prefix up to its own"
        " position.",
        queries=reads(F16, ("R", "Q"), "rotated"),
        row_indptr=reads(I32, INDPTR, "first row of each request"),
        positions=reads(I64, ("R",), "position of each row"),
        seq_len=reads(I64, EACH, "where the tree begins"),
        tree_mask=may_read(BOOL, ("R", "F"), "fed nodes each row sees, itself included"),
        req_to_token=TABLE,
        req_pool_indices=POOL_ROW,
        keys=reads(F16, ("S", "C"), "the draft's keys"),
        values=reads(F16, ("S", "C"), "the draft's values"),
        attended=returns(F16, ("R", "Q"), "rows"),
        head_dim=_HEAD_DIM,
        window=WINDOW,
        n_fed=scalar("int", 0, MAX_VERIFY, "nodes fed so far"),
    ),
    _op(
        "draft_softmax",
        (ROWS, _VOCAB),
        "Probabilities of draft logits, by the table that K5 uses.",
        logits=reads(F32, ("R", "V"), "from draft_logits"),
        probas=returns(F32, ("R", "V"), "over the whole vocabulary"),
    ),
    _op(
        "draft_top_k",
        (ROWS, _VOCAB),
        "The best K of each row, the lower id first among equals.",
        probas=reads(F32, ("R", "V"), "from draft_softmax"),
        topk_probas=returns(F32, ("R", "K"), "descending"),
        topk_tokens=returns(I64, ("R", "K"), "their ids"),
        K=scalar("int", 1, 10, "children a node"),
    ),
)  # fmt: skip
