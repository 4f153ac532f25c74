"""Cards of the draft inside a round: what a node sees, its best children, a layer in one call."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card, Refusal, Ulps
from aerie.kernels.cards.axes import (
    BATCH,
    DRAFT_VOCAB,
    FED,
    HIDDEN_SIZE,
    MAX_CANDIDATES,
    MAX_VERIFY,
    NODES,
    ROWS,
    TOP_K,
    VERIFY,
    WIDTH,
)
from aerie.kernels.cards.dtypes import BOOL, F32, HIDDEN, I32, I64
from aerie.kernels.cards.fields import (
    STATUS,
    cost,
    limit,
    may_read,
    reads,
    returns,
    scalar,
    updates,
)
from aerie.kernels.status import Status

_LAYER = ("B", "W*K")
_BEST = ("B", "K")
_STORE = ("B", "N")
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


DRAFT_PATHS = Card(
    DraftPaths,
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


BEST_CHILDREN = Card(
    BestChildren,
    axes=(ROWS, DRAFT_VOCAB),
    limits=(limit("node_top_k", "VD", "tokens of the draft vocabulary"),),
    ties="Equal logits: the lower draft id comes first.",
    # NumPy adds float32 exponentials, each off by up to 2.5 ulps, and alike where logits are equal.
    tolerances={"topk_probas": Ulps(cpu=4, gpu=1)},
    cost=cost("E*R*VD", "12*R*node_top_k", "R*VD*4"),
)


class DraftLayer(Call, number="R7", name="grow_draft_layer"):
    """A whole layer of the draft tree: K1 without a map, K2 without compat on K1's results and, if
    weigh is set, K3 on K2's; G is 0 if not. A refused request keeps its store; its next frontier is
    no node, so that the layers below are refused as well, and adds 0 to G.
    """

    cumu_count = scalar("int", 1, 4096, "nodes stored before this layer")
    verify_num = scalar("int", 1, MAX_VERIFY, "nodes the verifier may take, root included")
    fed_count = scalar("int", 0, 1024, "nodes fed to the draft before this layer")
    weigh = scalar("bool", 0, 1, "whether somebody learns from its gain", default=False)
    cumu_tokens = updates(I64, _STORE, "token of each node")
    cumu_scores = updates(F32, _STORE, "path score of each node")
    cumu_deltas = updates(I64, _STORE, "depth of each node")
    prev_indexs = updates(I64, _STORE, "parent")
    next_indexs = updates(I64, _STORE, "first child")
    side_indexs = updates(I64, _STORE, "next sibling")
    sort_scores = updates(F32, ("B", "M"), "best path scores so far, descending")
    topk_probas = reads(F32, _LAYER, "draft probability of each candidate")
    topk_tokens = reads(I64, _LAYER, "candidate tokens, target ids")
    last_layer_scores = reads(F32, ("B", "W"), "path score of each frontier slot")
    input_hidden = reads(HIDDEN, ("B*W", "H"), "hidden row of each frontier slot")
    frontier_indexs = reads(I64, ("B", "W"), "node id of each frontier slot")
    input_tree_mask = reads(BOOL, ("B", "W", "F"), "fed nodes each frontier slot sees")
    node_ids = returns(I64, _BEST, "node ids of the best K candidates", -1)
    output_scores = returns(F32, _BEST, "their path scores")
    output_tokens = returns(I64, _BEST, "their tokens", -1)
    output_hidden = returns(HIDDEN, ("B", "K", "H"), "hidden row of their parent slot")
    output_tree_mask = returns(BOOL, ("B", "K", "F"), "parent's row plus column fed_count + i")
    G = returns(F32, ("K + 1",), "gain of verifying the k best new nodes, 0 if not weighed")
    status = STATUS


DRAFT_LAYER = Card(
    DraftLayer,
    axes=(BATCH, WIDTH, TOP_K, HIDDEN_SIZE, NODES, VERIFY, FED),
    limits=(
        limit("W*K", str(MAX_CANDIDATES), "candidates of one layer"),
        limit("cumu_count + W*K", "N", "nodes per request"),
        limit("verify_num", "M", "entries of sort_scores"),
        limit("fed_count + K", "F", "columns of the draft's tree mask"),
    ),
    refusals=(
        Refusal(Status.OUT_OF_RANGE, "cumu_count", "a frontier id is not a node yet"),
        Refusal(Status.BROKEN_TREE, "1", "two frontier slots are the same node"),
        Refusal(Status.DUPLICATE_SIBLING, "1", "a frontier slot proposes one token twice"),
    ),
    ties="Equal scores: the lower candidate first; in sort_scores the older entry.",
    assumes="sort_scores is descending, as it is when every layer was stored by this card or K2.",
    tolerances={"G": Ulps(cpu=1, gpu=1)},
    cost=cost(
        "B*(12*W*K + 12*W + W*F + 4*M + E*K*H)",
        "B*(44*W*K + 8*W + 20*K + K*F + 4*M + E*K*H) + 4*K + 4",
        "B*(11*W*K + 2*M + K*F + K)",
    ),
)

DRAFT_CARDS = (DRAFT_PATHS, BEST_CHILDREN, DRAFT_LAYER)
