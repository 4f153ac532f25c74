"""Cards of text paths: what followed the last time a text ended like this, as nodes of the tree."""

from __future__ import annotations

from aerie.kernels.card import Axis, Card, Scalar
from aerie.kernels.cards.axes import (
    BATCH,
    DEPTH,
    F32,
    I32,
    I64,
    NODES,
    SEATED_ROWS,
    SEATED_WIDTH,
    cost,
    limit,
    reads,
    returns,
    updates,
)

_EACH = ("B",)
_STORE = ("B", "N")
LONGEST, MOST_SEARCHED = 8, 1 << 16

FOUND_PATH = Card(
    number="R13",
    name="find_text_path",
    family="round",
    version=1,
    summary=(
        "Look each text's own ending up in it: of its last searched tokens, the longest suffix of"
        " up to longest tokens that occurs earlier there, and the latest such occurrence; the path"
        " is what followed it, up to path_length tokens and the end of the text. An occurrence may"
        " overlap the suffix. No path where even the last token is new."
    ),
    axes=(BATCH, SEATED_ROWS, SEATED_WIDTH),
    scalars=(
        Scalar("longest", "int", 1, LONGEST, "tokens of the suffix at most"),
        Scalar("path_length", "int", 1, DEPTH.high, "tokens of the path at most"),
        Scalar("searched", "int", 1, MOST_SEARCHED, "tokens looked through, the newest ones"),
    ),
    ports=(
        reads("text", I32, ("P", "L"), "texts, one row of the table each"),
        reads("req_pool_indices", I64, _EACH, "table row of each request"),
        reads("text_len", I64, _EACH, "tokens of its text"),
        returns("path_tokens", I64, ("B", "path_length"), "tokens of the path", -1),
        returns("path_len", I64, _EACH, "how many"),
        returns("match_len", I64, _EACH, "length of the suffix that was found, 0 for none"),
    ),
    ties="The longer suffix first, then the later occurrence.",
    assumes="req_pool_indices are rows of the table; 0 <= text_len <= L.",
    cost=cost("4*B*searched + 16*B", "8*B*path_length + 16*B", "B*searched*longest"),
)

MERGED_PATH = Card(
    number="R14",
    name="merge_text_path",
    family="round",
    version=1,
    summary=(
        "Add one path below each root. From the root on, a child that carries the path's next"
        " token and stands one deeper is walked over, the lowest id of several; where there is"
        " none, the rest of the path becomes new nodes node_count, node_count + 1, ... Entries up"
        " to node_count + T that stay unused get token 0, score 0, depth 0, parent -1. A new node,"
        " and one walked over that had no score, is scored confidence^k times the score of the"
        " nearest path node above it that had one, k levels up: the power by k float64 products,"
        " the result rounded to float32 once."
    ),
    axes=(BATCH, NODES, Axis("T", 1, DEPTH.high, "tokens of a path at most")),
    scalars=(Scalar("node_count", "int", 1, 4096, "nodes of each tree before"),),
    ports=(
        updates("cumu_tokens", I64, _STORE, "token of each node"),
        updates("cumu_scores", F32, _STORE, "path score of each node"),
        updates("cumu_deltas", I64, _STORE, "depth of each node"),
        updates("prev_indexs", I64, _STORE, "parent"),
        reads("path_tokens", I64, ("B", "T"), "from R13"),
        reads("path_len", I64, _EACH, "from R13"),
        reads("confidence", F32, _EACH, "what a copied token is worth of its parent, 0 to 1"),
        returns("n_added", I64, _EACH, "new nodes"),
    ),
    limits=(limit("node_count + T", "N", "nodes per request"),),
    ties="Of several children with the token the lowest id is walked over.",
    assumes="0 <= path_len <= T; parents of the first node_count nodes are among them.",
    cost=cost("B*(28*N + 8*T)", "28*B*T + 8*B", "3*B*N*T"),
)

TEXT_CARDS = (FOUND_PATH, MERGED_PATH)
