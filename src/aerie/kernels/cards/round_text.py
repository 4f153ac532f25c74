"""Cards of text paths: what followed the last time a text ended like this, as nodes of the tree."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card
from aerie.kernels.cards.axes import BATCH, DEPTH, NODES, SEATED_ROWS, SEATED_WIDTH
from aerie.kernels.cards.dtypes import EACH, F32, I32, I64, STORE
from aerie.kernels.cards.fields import POOL_ROW, cost, limit, reads, returns, scalar, updates

LONGEST, MOST_SEARCHED = 8, 1 << 16


class FoundPath(Call, number="R13", name="find_text_path"):
    """Look each text's own ending up in it: of its last searched tokens, the longest suffix of up
    to longest tokens that occurs earlier there, and the latest such occurrence; the path is what
    followed it, up to path_length tokens and the end of the text. An occurrence may overlap the
    suffix. No path where even the last token is new.
    """

    longest = scalar("int", 1, LONGEST, "tokens of the suffix at most")
    path_length = scalar("int", 1, DEPTH.high, "tokens of the path at most")
    searched = scalar("int", 1, MOST_SEARCHED, "tokens looked through, the newest ones")
    text = reads(I32, ("P", "L"), "texts, one row of the table each")
    req_pool_indices = POOL_ROW
    text_len = reads(I64, EACH, "tokens of its text")
    path_tokens = returns(I64, ("B", "path_length"), "tokens of the path", -1)
    path_len = returns(I64, EACH, "how many")
    match_len = returns(I64, EACH, "length of the suffix that was found, 0 for none")
    card = Card(
        axes=(BATCH, SEATED_ROWS, SEATED_WIDTH),
        ties="The longer suffix first, then the later occurrence.",
        assumes="req_pool_indices are rows of the table; 0 <= text_len <= L.",
        cost=cost("4*B*searched + 16*B", "8*B*path_length + 16*B", "B*searched*longest"),
    )


class MergedPath(Call, number="R14", name="merge_text_path"):
    """Add one path below each root. From the root on, a child that carries the path's next token
    and stands one deeper is walked over, the lowest id of several; where there is none, the rest of
    the path becomes new nodes node_count, node_count + 1, ... Entries up to node_count + T that
    stay unused get token 0, score 0, depth 0, parent -1. A new node, and one walked over that had
    no score, is scored confidence^k times the score of the nearest path node above it that had one,
    k levels up: the power by k float64 products, the result rounded to float32 once.
    """

    node_count = scalar("int", 1, 4096, "nodes of each tree before")
    cumu_tokens = updates(I64, STORE, "token of each node")
    cumu_scores = updates(F32, STORE, "path score of each node")
    cumu_deltas = updates(I64, STORE, "depth of each node")
    prev_indexs = updates(I64, STORE, "parent")
    path_tokens = reads(I64, ("B", "T"), "from R13")
    path_len = reads(I64, EACH, "from R13")
    confidence = reads(F32, EACH, "what a copied token is worth of its parent, 0 to 1")
    n_added = returns(I64, EACH, "new nodes")
    card = Card(
        axes=(BATCH, NODES, Axis("T", 1, DEPTH.high, "tokens of a path at most")),
        limits=(limit("node_count + T", "N", "nodes per request"),),
        ties="Of several children with the token the lowest id is walked over.",
        assumes="0 <= path_len <= T; parents of the first node_count nodes are among them.",
        cost=cost("B*(28*N + 8*T)", "28*B*T + 8*B", "3*B*N*T"),
    )
