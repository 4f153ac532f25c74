"""Cards of the drafting kernels K1 to K3: score a layer, store it, weigh its gain."""

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
    I64,
    MAX_CANDIDATES,
    MAX_VERIFY,
    NODES,
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
_CANDIDATES = limit("W*K", str(MAX_CANDIDATES), "candidates of one layer")

LAYER_SCORES = Card(
    number="K1",
    name="draft_tree_layer_score_index_gen_op",
    family="growth",
    version=1,
    summary=(
        "Score the W*K candidates of a layer, sort them all, gather the hidden rows of the best K."
        " A probability is read as min(max(p, 0), 1), NaN as 0; the path score is the float32"
        " product with the parent's, which may be any float: a product that is NaN stays NaN."
        " Column t*K+j is the j-th choice of frontier slot t."
    ),
    axes=(BATCH, WIDTH, TOP_K, HIDDEN_SIZE, DRAFT_VOCAB),
    scalars=(Scalar("cumu_count", "int", 1, 4096, "nodes stored before this layer"),),
    ports=(
        reads("topk_probas", F32, _LAYER, "draft probability of each candidate, whole vocabulary"),
        reads("topk_tokens", I64, _LAYER, "candidate tokens, draft ids when a map is given"),
        reads("last_layer_scores", F32, ("B", "W"), "path score of each frontier slot"),
        reads("input_hidden", HIDDEN, ("B*W", "H"), "hidden row of each frontier slot"),
        may_read("hot_token_id", I64, ("VD",), "draft id to target id; injective"),
        returns("curr_layer_scores", F32, _LAYER, "path score of each candidate"),
        returns("sort_layer_scores", F32, _LAYER, "all path scores, descending"),
        returns("sort_layer_indices", I64, _LAYER, "candidate index of each sorted score", -1),
        returns("cache_topk_indices", I64, _BEST, "node ids of the best K candidates", -1),
        returns("parent_indices_in_layer", I64, _BEST, "frontier slot each of them hangs on", -1),
        returns("output_hidden", HIDDEN, ("B", "K", "H"), "hidden row of that parent slot"),
        returns("mapped_tokens", I64, _LAYER, "candidate tokens as target ids", -1),
        STATUS,
    ),
    limits=(_CANDIDATES,),
    refusals=(
        Refusal(Status.OUT_OF_RANGE, "VD", "a draft token has no entry in hot_token_id"),
        Refusal(Status.NOT_INJECTIVE, "1", "hot_token_id repeats a target id (all requests)"),
    ),
    ties=(
        "Equal scores keep candidate order: the lower candidate index comes first. NaN comes behind"
        " every number."
    ),
    cost=cost(
        "B*(12*W*K + 4*W + E*K*H)",
        "B*(24*W*K + 16*K + E*K*H)",
        # one product and, for a sorting network, about log2(64) = 6 comparisons a candidate
        "7*B*W*K",
    ),
)

CUMULATIVE_STATE = Card(
    number="K2",
    name="update_cumu_draft_state",
    family="growth",
    version=1,
    summary=(
        "Store the layer's W*K nodes with their links, emit the next frontier's candidates and"
        " keep the running order of scores. Takes path scores, never conditional probabilities."
        " compat stores score * 0.9999 from depth 2 on, once, never compounded. Scores may be any"
        " floats in any order: sort_scores becomes the first of a stable descending sort of the old"
        " ones and the layer's. Depths wrap around int64."
    ),
    axes=(BATCH, WIDTH, TOP_K, NODES, VERIFY, FED),
    scalars=(
        Scalar("cumu_count", "int", 1, 4096, "nodes stored before this layer"),
        Scalar("verify_num", "int", 1, MAX_VERIFY, "nodes the verifier may take, root included"),
        Scalar("fed_count", "int", 0, 1024, "nodes fed to the draft before this layer"),
        Scalar("compat", "bool", 0, 1, "constants of the captured runs", default=False),
    ),
    ports=(
        updates("cumu_tokens", I64, _STORE, "token of each node"),
        updates("cumu_scores", F32, _STORE, "stored path score of each node"),
        updates("cumu_deltas", I64, _STORE, "depth of each node"),
        updates("prev_indexs", I64, _STORE, "parent"),
        updates("next_indexs", I64, _STORE, "first child"),
        updates("side_indexs", I64, _STORE, "next sibling"),
        updates("sort_scores", F32, ("B", "M"), "best path scores so far, descending"),
        reads("curr_layer_scores", F32, _LAYER, "path scores, from K1"),
        reads("topk_tokens", I64, _LAYER, "target ids (K1's mapped_tokens)"),
        reads("sort_layer_scores", F32, _LAYER, "from K1"),
        reads("sort_layer_indices", I64, _LAYER, "from K1"),
        reads("frontier_indexs", I64, ("B", "W"), "node id of each frontier slot"),
        reads("input_tree_mask", BOOL, ("B", "W", "F"), "fed nodes each frontier slot sees"),
        returns("output_scores", F32, _BEST, "path scores of the next frontier's candidates"),
        returns("output_tokens", I64, _BEST, "their tokens", -1),
        returns(
            "work_scores",
            F32,
            ("B", "min(verify_num, cumu_count) + K"),
            "sort_scores before this layer, then output_scores: two descending runs",
        ),
        returns(
            "output_tree_mask", BOOL, ("B", "K", "F"), "parent's row plus column fed_count + i"
        ),
        STATUS,
    ),
    limits=(
        _CANDIDATES,
        limit("cumu_count + W*K", "N", "nodes per request"),
        limit("verify_num", "M", "entries of sort_scores"),
        limit("fed_count + K", "F", "columns of the draft's tree mask"),
    ),
    refusals=(
        Refusal(Status.OUT_OF_RANGE, "cumu_count", "a frontier id is not a node yet"),
        Refusal(Status.BROKEN_TREE, "1", "two frontier slots are the same node"),
        Refusal(Status.CANDIDATE, "W*K", "a sort index is not a candidate"),
        Refusal(Status.DUPLICATE_SIBLING, "1", "a frontier slot proposes one token twice"),
    ),
    ties="sort_scores: on equal scores the older entry stays in front; NaN comes last.",
    cost=cost(
        "B*(24*W*K + 8*W + W*F + 4*M)",
        "B*(44*W*K + 8*W + 12*K + K*F + 8*M + 4*K)",
        "B*(4*W*K + 2*M + K*F)",
    ),
)

WORK_DELTAS = Card(
    number="K3",
    name="calculate_work_deltas",
    family="growth",
    version=1,
    summary=(
        "G[k]: mean over the batch of the extra score mass that verifying k of the new nodes"
        " brings, at verify_num nodes in all. Each new score takes a free slot (worth 0) while"
        " there is one, then the smallest old score's that no new one took before, and gains what"
        " it is above that, or nothing; NaN and equal infinities gain nothing. G[0] = 0, never"
        " decreasing, concave for descending runs. Increments and their sum in float64, requests"
        " ascending, rounded to float32 once. An empty batch: 0."
    ),
    axes=(BATCH, Axis("C", 1, MAX_VERIFY + 10, "length of both runs together")),
    scalars=(
        Scalar("node_top_k", "int", 1, 10, "length of the second run"),
        Scalar("verify_num", "int", 1, MAX_VERIFY, "nodes the verifier may take, root included"),
    ),
    ports=(
        reads("work_scores", F32, ("B", "C"), "two descending runs: old, then node_top_k new"),
        returns("G", F32, ("node_top_k + 1",), "gain of verifying the k best new nodes"),
    ),
    limits=(
        limit("node_top_k", "C", "scores of the second run"),
        limit("C - node_top_k", "verify_num", "scores of the first run"),
    ),
    ties="A new score equal to the old one it would displace gains nothing.",
    tolerances={"G": Ulps(cpu=1, gpu=1)},
    cost=cost("4*B*C", "4*node_top_k + 4", "B*(C + node_top_k)"),
)

GROWTH_CARDS = (LAYER_SCORES, CUMULATIVE_STATE, WORK_DELTAS)
