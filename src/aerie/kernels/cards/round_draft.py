"""Cards of the draft inside a round: what a node sees, and its best children."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card, Ulps
from aerie.kernels.cards.axes import BATCH, DRAFT_VOCAB, MAX_VERIFY, ROWS, WIDTH
from aerie.kernels.cards.dtypes import F32, HIDDEN, I32, I64
from aerie.kernels.cards.fields import cost, limit, may_read, reads, returns, scalar

_PER_ROW = ("R", "node_top_k")


class DraftPaths(Call, number="R5", name="mark_draft_paths"):
    """What the nodes about to be fed see of the nodes fed so far, 128 bits in four words: what
    their parent in the frontier sees, and themselves, node i of a request being column fed_count +
    i; word j div 32, bit j mod 32. A node's parent is the frontier slot (id - first_id) div top_k,
    the nearest one for an id that is no child.
    """

    first_id = scalar("int", 1, 4096, "id of the layer's first node")
    top_k = scalar("int", 1, 10, "children of each frontier node")
    fed_count = scalar("int", 0, MAX_VERIFY, "nodes fed before")
    frontier_bits = reads(I32, ("B", "W", "4"), "what each frontier node sees")
    node_ids = reads(I64, ("B", "X"), "ids of the nodes, from R7; -1 where refused")
    node_bits = returns(I32, ("B", "X", "4"), "what each node sees, itself included")
    card = Card(
        axes=(BATCH, WIDTH, Axis("X", 1, 10, "nodes fed next, per request")),
        limits=(limit("fed_count + X", str(MAX_VERIFY), "nodes fed in all"),),
        ties="None: bits.",
        cost=cost("16*B*W + 8*B*X", "16*B*X", "8*B*X"),
    )


class BestChildren(Call, number="R6", name="best_draft_children"):
    """The node_top_k most probable tokens of every row of draft logits: their probability over the
    whole draft vocabulary, exp(x - max) / sum in float64 rounded to float32 once, and their target
    ids. The order is that of the logits. A logit that is not finite counts as impossible; a row
    without a finite one has probability 0 throughout and lists its first ids.
    """

    node_top_k = scalar("int", 1, 10, "children of each row")
    logits = reads(HIDDEN, ("R", "VD"), "draft logits")
    hot_token_id = may_read(I64, ("VD",), "draft id to target id")
    topk_probas = returns(F32, _PER_ROW, "probability of each child")
    topk_tokens = returns(I64, _PER_ROW, "its target id")
    card = Card(
        axes=(ROWS, DRAFT_VOCAB),
        limits=(limit("node_top_k", "VD", "tokens of the draft vocabulary"),),
        ties="Equal logits: the lower draft id comes first.",
        # NumPy adds float32 exponentials, each off by up to 2.5 ulps, alike where logits are equal.
        tolerances={"topk_probas": Ulps(cpu=4, gpu=1)},
        cost=cost("E*R*VD", "12*R*node_top_k", "R*VD*4"),
    )
