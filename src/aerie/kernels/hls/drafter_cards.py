"""Cards of a draft head: kernel by kernel, and as one region from features to a laid-out tree.

Weights of 4 bits are flat arrays of bytes, two numbers a byte, and of 16-bit scales, one a group of
128 (32 for a sketch of the head). The fused region takes the down projection in tiles of 128
columns, so that the wide row between the products never exists whole (`aerie fpga pack`).
"""

from __future__ import annotations

from aerie.kernels.card import Axis, Card, Port, Scalar
from aerie.kernels.cards.axes import (
    BATCH,
    BOOL,
    F32,
    I32,
    I64,
    MAX_VERIFY,
    TABLE_ROWS,
    TABLE_WIDTH,
    U8,
    cost,
    may_read,
    reads,
    returns,
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
_HEAD_DIM = Scalar("head_dim", "int", 32, MAX_HEAD_DIM, "width of a head, a multiple of 32")
WINDOW = Scalar("window", "int", 0, 1 << 21, "positions a row looks back at, 0: all")
_WIDE = Scalar("Q", "int", 32, 8192, "width of all queries")
ONE = ("1",)
FREE = cost("0", "0", "0")


def any_size(name: str, meaning: str) -> Axis:
    return Axis(name, 1, (1 << 31) - 1, meaning)


def q4_weight(name: str, n_bytes: str, n_scales: str, optional: bool = False) -> tuple[Port, Port]:
    """A 4-bit weight and its scales, flat."""
    make = may_read if optional else reads
    return (
        make(name, U8, (n_bytes,), "two numbers a byte, the lower first"),
        make(f"{name}_scale", F16, (n_scales,), "one a group"),
    )


def _op(
    name: str,
    summary: str,
    axes: tuple[Axis, ...],
    ports: tuple[Port, ...],
    scalars: tuple[Scalar, ...] = (),
) -> Card:
    return Card("D", name, "drafter", 1, summary, axes, ports, "None.", FREE, scalars)


DRAFTER_CARDS: tuple[Card, ...] = (
    _op(
        "draft_embed_rows",
        "Embedding rows of tokens.",
        (ROWS, HIDDEN, EMBEDDED),
        (
            reads("tokens", I64, ("R",), "token of each row"),
            reads("embedding", F16, ("VT", "H"), "one row a token"),
            returns("rows", F16, ("R", "H"), "its embedding"),
        ),
    ),
    _op(
        "draft_linear_half",
        "Rows times a 16-bit weight; sums in float32, groups of 128 in order.",
        (ROWS, _INPUT, _OUTPUT),
        (
            reads("x", F16, ("R", "I"), "rows"),
            reads("weight", F16, ("O", "I"), "one row an output"),
            returns("y", F16, ("R", "O"), "products"),
        ),
    ),
    _op(
        "draft_linear_q4",
        "Rows times a 4-bit weight: (number - 8) * scale of its group of 128.",
        (ROWS, _INPUT, any_size("NW", "bytes of the weight"), any_size("NS", "its scales")),
        (
            reads("x", F16, ("R", "I"), "rows"),
            *q4_weight("weight", "NW", "NS"),
            returns("y", F16, ("R", "O"), "products"),
        ),
        (Scalar("O", "int", 1, 1 << 18, "width of a row coming out"),),
    ),
    _op(
        "draft_logits",
        "The whole head in 16 bits, logits to memory.",
        (ROWS, HIDDEN, _VOCAB),
        (
            reads("x", F16, ("R", "H"), "normed rows"),
            reads("weight", F16, ("V", "H"), "one row a token"),
            returns("logits", F32, ("R", "V"), "products, float32"),
        ),
    ),
    _op(
        "draft_join_norms",
        "The embedding and the hidden state of each row side by side, each normed.",
        (ROWS, HIDDEN),
        (
            reads("embedded", F16, ("R", "H"), "embedding rows"),
            reads("hidden", F16, ("R", "H"), "hidden states"),
            reads("embedding_norm", F32, ("H",), "weight of the norm"),
            reads("hidden_norm", F32, ("H",), "weight of the norm"),
            reads("eps", F32, ONE, "of both"),
            returns("joined", F16, ("R", "2*H"), "side by side"),
        ),
    ),
    _op(
        "draft_add_norm",
        "The residual stream after an addition, and its norm.",
        (ROWS, HIDDEN),
        (
            reads("residual", F16, ("R", "H"), "the stream"),
            reads("added", F16, ("R", "H"), "what is added"),
            reads("norm", F32, ("H",), "weight of the norm"),
            reads("eps", F32, ONE, "of the norm"),
            returns("total", F16, ("R", "H"), "their sum"),
            returns("normed", F16, ("R", "H"), "its norm"),
        ),
    ),
    _op(
        "draft_gate",
        "silu of the first half of a row times its second.",
        (ROWS, any_size("GU", "both halves")),
        (
            reads("gate_up", F16, ("R", "GU"), "both halves"),
            returns("gated", F16, ("R", "GU // 2"), "their product"),
        ),
    ),
    _op(
        "draft_rotate_store",
        "Rotate queries and keys by position; keys and values go to their slots.",
        (ROWS, KEY, SLOTS, ANGLES, HALF, any_size("NQ", "width of a projected row")),
        (
            reads("qkv", F16, ("R", "NQ"), "queries, keys, values"),
            reads("positions", I64, ("R",), "position of each row"),
            reads("slots", I32, ("R",), "slot of each row"),
            reads("cosines", F32, ("NP", "HD"), "by position"),
            reads("sines", F32, ("NP", "HD"), "by position"),
            updates("keys", F16, ("S", "C"), "the draft's keys"),
            updates("values", F16, ("S", "C"), "the draft's values"),
            returns("queries", F16, ("R", "NQ - 2*C"), "rotated"),
        ),
    ),
    _op(
        "draft_attend",
        "Attention of ragged rows over the columns of each request's table row: the prefix within"
        " the window, then nodes the draft has fed, by a mask. A key and value is read once for all"
        " rows of its request. Without a mask a row sees the prefix up to its own position.",
        (BATCH, ROWS, KEY, SLOTS, Axis("F", 1, MAX_VERIFY, "columns of the mask"), TABLE_ROWS,
         TABLE_WIDTH, any_size("Q", "width of all queries")),
        (
            reads("queries", F16, ("R", "Q"), "rotated"),
            reads("row_indptr", I32, ("B+1",), "first row of each request"),
            reads("positions", I64, ("R",), "position of each row"),
            reads("seq_len", I64, ("B",), "where the tree begins"),
            may_read("tree_mask", BOOL, ("R", "F"), "fed nodes each row sees, itself included"),
            reads("req_to_token", I32, ("P", "L"), "request-to-slot table"),
            reads("req_pool_indices", I64, ("B",), "table row of each request"),
            reads("keys", F16, ("S", "C"), "the draft's keys"),
            reads("values", F16, ("S", "C"), "the draft's values"),
            returns("attended", F16, ("R", "Q"), "rows"),
        ),
        (_HEAD_DIM, WINDOW, Scalar("n_fed", "int", 0, MAX_VERIFY, "nodes fed so far")),
    ),
    _op(
        "draft_softmax",
        "Probabilities of draft logits, by the table that K5 uses.",
        (ROWS, _VOCAB),
        (
            reads("logits", F32, ("R", "V"), "from draft_logits"),
            returns("probas", F32, ("R", "V"), "over the whole vocabulary"),
        ),
    ),
    _op(
        "draft_top_k",
        "The best K of each row, the lower id first among equals.",
        (ROWS, _VOCAB),
        (
            reads("probas", F32, ("R", "V"), "from draft_softmax"),
            returns("topk_probas", F32, ("R", "K"), "descending"),
            returns("topk_tokens", I64, ("R", "K"), "their ids"),
        ),
        (Scalar("K", "int", 1, 10, "children a node"),),
    ),
)  # fmt: skip
