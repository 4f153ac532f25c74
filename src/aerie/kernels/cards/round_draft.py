"""Cards of the draft inside a round: what a node sees, its best children, a layer in one call."""

from __future__ import annotations

from aerie.kernels.card import Axis, Card, Refusal, Scalar, Ulps
from aerie.kernels.cards.axes import (
    BATCH,
    BOOL,
    DRAFT_VOCAB,
    F32,
    FED,
    HIDDEN,
    HIDDEN_SIZE,
    I32,
    I64,
    MAX_CANDIDATES,
    MAX_VERIFY,
    NODES,
    ROWS,
    STATUS,
    TOP_K,
    VERIFY,
    WIDTH,
    cost,
    limit,
    may_read,
    reads,
    returns,
    updates,
)
from aerie.kernels.status import Status

_LAYER = ("B", "W*K")
_BEST = ("B", "K")
_STORE = ("B", "N")
_PER_ROW = ("R", "node_top_k")

DRAFT_PATHS = Card(
    number="R5",
    name="mark_draft_paths",
    family="round",
    version=1,
    summary=(
        "What the nodes about to be fed see of the nodes fed so far, 128 bits in four words: what"
        " their parent in the frontier sees, and themselves, node i of a request being column"
        " fed_count + i; word j div 32, bit j mod 32. A node's parent is the frontier slot (id -"
        " first_id) div top_k, the nearest one for an id that is no child."
    ),
    axes=(BATCH, WIDTH, Axis("X", 1, 10, "nodes fed next, per request")),
    scalars=(
        Scalar("first_id", "int", 1, 4096, "id of the layer's first node"),
        Scalar("top_k", "int", 1, 10, "children of each frontier node"),
        Scalar("fed_count", "int", 0, MAX_VERIFY, "nodes fed before"),
    ),
    ports=(
        reads("frontier_bits", I32, ("B", "W", "4"), "what each frontier node sees"),
        reads("node_ids", I64, ("B", "X"), "ids of the nodes, from R7; -1 where refused"),
        returns("node_bits", I32, ("B", "X", "4"), "what each node sees, itself included"),
    ),
    limits=(limit("fed_count + X", str(MAX_VERIFY), "nodes fed in all"),),
    ties="None: bits.",
    cost=cost("16*B*W + 8*B*X", "16*B*X", "8*B*X"),
)

BEST_CHILDREN = Card(
    number="R6",
    name="best_draft_children",
    family="round",
    version=1,
    summary=(
        "The node_top_k most probable tokens of every row of draft logits: their probability over"
        " the whole draft vocabulary, exp(x - max) / sum in float64 rounded to float32 once, and"
        " their target ids. The order is that of the logits. A logit that is not finite counts as"
        " impossible; a row without a finite one has probability 0 throughout and lists its first"
        " ids."
    ),
    axes=(ROWS, DRAFT_VOCAB),
    scalars=(Scalar("node_top_k", "int", 1, 10, "children of each row"),),
    ports=(
        reads("logits", HIDDEN, ("R", "VD"), "draft logits"),
        may_read("hot_token_id", I64, ("VD",), "draft id to target id"),
        returns("topk_probas", F32, _PER_ROW, "probability of each child"),
        returns("topk_tokens", I64, _PER_ROW, "its target id"),
    ),
    limits=(limit("node_top_k", "VD", "tokens of the draft vocabulary"),),
    ties="Equal logits: the lower draft id comes first.",
    # NumPy adds float32 exponentials, each off by up to 2.5 ulps, and alike where logits are equal.
    tolerances={"topk_probas": Ulps(cpu=4, gpu=1)},
    cost=cost("E*R*VD", "12*R*node_top_k", "R*VD*4"),
)

DRAFT_LAYER = Card(
    number="R7",
    name="grow_draft_layer",
    family="round",
    version=1,
    summary=(
        "A whole layer of the draft tree: K1 without a map, K2 without compat on K1's results and,"
        " if weigh is set, K3 on K2's; G is 0 if not. A refused request keeps its store; its next"
        " frontier is no node, so that the layers below are refused as well, and adds 0 to G."
    ),
    axes=(BATCH, WIDTH, TOP_K, HIDDEN_SIZE, NODES, VERIFY, FED),
    scalars=(
        Scalar("cumu_count", "int", 1, 4096, "nodes stored before this layer"),
        Scalar("verify_num", "int", 1, MAX_VERIFY, "nodes the verifier may take, root included"),
        Scalar("fed_count", "int", 0, 1024, "nodes fed to the draft before this layer"),
        Scalar("weigh", "bool", 0, 1, "whether somebody learns from its gain", default=False),
    ),
    ports=(
        updates("cumu_tokens", I64, _STORE, "token of each node"),
        updates("cumu_scores", F32, _STORE, "path score of each node"),
        updates("cumu_deltas", I64, _STORE, "depth of each node"),
        updates("prev_indexs", I64, _STORE, "parent"),
        updates("next_indexs", I64, _STORE, "first child"),
        updates("side_indexs", I64, _STORE, "next sibling"),
        updates("sort_scores", F32, ("B", "M"), "best path scores so far, descending"),
        reads("topk_probas", F32, _LAYER, "draft probability of each candidate"),
        reads("topk_tokens", I64, _LAYER, "candidate tokens, target ids"),
        reads("last_layer_scores", F32, ("B", "W"), "path score of each frontier slot"),
        reads("input_hidden", HIDDEN, ("B*W", "H"), "hidden row of each frontier slot"),
        reads("frontier_indexs", I64, ("B", "W"), "node id of each frontier slot"),
        reads("input_tree_mask", BOOL, ("B", "W", "F"), "fed nodes each frontier slot sees"),
        returns("node_ids", I64, _BEST, "node ids of the best K candidates", -1),
        returns("output_scores", F32, _BEST, "their path scores"),
        returns("output_tokens", I64, _BEST, "their tokens", -1),
        returns("output_hidden", HIDDEN, ("B", "K", "H"), "hidden row of their parent slot"),
        returns(
            "output_tree_mask", BOOL, ("B", "K", "F"), "parent's row plus column fed_count + i"
        ),
        returns("G", F32, ("K + 1",), "gain of verifying the k best new nodes, 0 if not weighed"),
        STATUS,
    ),
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
